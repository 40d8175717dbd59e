from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openforge.tasks import TaskOrder, discrepancy
from openforge.types import Task, UserError


def tasks_of(sizes: list[int]) -> list[Task]:
    return [Task(id=f"{d}-{i}", instruction="x", domain=f"d{d}") for d, size in enumerate(sizes) for i in range(size)]


sizes = st.lists(st.integers(1, 12), min_size=1, max_size=4)
weights = st.lists(st.floats(0.01, 100), min_size=1, max_size=6)


@given(sizes, st.integers(0, 2**32), st.integers(0, 3))
def test_every_epoch_has_each_task_once(sizes: list[int], seed: int, epoch: int) -> None:
    tasks = tasks_of(sizes)
    order = TaskOrder(tasks, seed, taken={f"d{d}": epoch * size for d, size in enumerate(sizes)})
    assert Counter(task.id for task in islice(order, len(tasks))) == Counter(task.id for task in tasks)


@given(sizes, st.integers(), st.lists(st.booleans(), max_size=60))
def test_the_counts_are_all_it_takes_to_go_on(sizes: list[int], seed: int, lost: list[bool]) -> None:
    whole = TaskOrder(tasks_of(sizes), seed)
    taken, back = Counter[str](), Counter[str]()
    for is_lost, task in zip(lost, whole, strict=False):
        taken[task.domain] += 1
        if is_lost:
            back[task.domain] += 1
            whole.give_back(task.domain)
    resumed = TaskOrder(tasks_of(sizes), seed, taken=taken, lost=back)
    assert list(islice(whole, 20)) == list(islice(resumed, 20))


@given(weights, st.integers(0, 300))
def test_every_prefix_mixes_the_domains_in_proportion(weights: list[float], taken: int) -> None:
    order = TaskOrder(tasks_of([1] * len(weights)), 0, weights={f"d{d}": weight for d, weight in enumerate(weights)})
    counts = Counter(task.domain for task in islice(order, taken))
    for domain, share in order.shares.items():
        assert abs(counts[domain] - taken * share) <= discrepancy(share, len(weights)) + 1e-6


@given(weights, st.integers(0, 50), st.integers(1, 20), st.randoms())
def test_what_was_lost_is_made_up_for_at_once(weights: list[float], before: int, lost: int, chance: object) -> None:
    order = TaskOrder(tasks_of([1] * len(weights)), 0, weights={f"d{d}": weight for d, weight in enumerate(weights)})
    live = Counter(task.domain for task in islice(order, before + lost))
    for domain in chance.sample(sorted(live.elements()), lost):  # type: ignore[attr-defined]
        live[domain] -= 1
        order.give_back(domain)
    live.update(task.domain for task in islice(order, lost))
    for domain, share in order.shares.items():
        assert abs(live[domain] - live.total() * share) <= discrepancy(share, len(weights)) + 1e-6


def test_weights_set_the_shares_whatever_the_sizes() -> None:
    order = TaskOrder(tasks_of([3, 30]), 0, weights={"d0": 3, "d1": 1})
    assert Counter(task.domain for task in islice(order, 400)) == {"d0": 300, "d1": 100}


def test_seeds_differ_and_epochs_differ() -> None:
    tasks = tasks_of([20])
    first, second = (list(islice(TaskOrder(tasks, seed), 40)) for seed in (0, 1))
    assert first[:20] != second[:20]
    assert first[:20] != first[20:]


@pytest.mark.parametrize("weights", [{"d0": 1.0}, {"d0": 1.0, "d1": 1.0, "typo": 1.0}])
def test_weights_name_exactly_the_domains(weights: dict[str, float]) -> None:
    with pytest.raises(UserError, match=r"tasks.weights: give every domain .*look at (d1|typo)"):
        TaskOrder(tasks_of([2, 2]), 0, weights=weights)
