from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openforge.tasks import TaskOrder
from openforge.types import Task, UserError


def tasks_of(sizes: list[int]) -> list[Task]:
    return [Task(id=f"{d}-{i}", instruction="x", domain=f"d{d}") for d, size in enumerate(sizes) for i in range(size)]


sizes = st.lists(st.integers(1, 12), min_size=1, max_size=4)


@given(sizes, st.integers(0, 2**32), st.integers(0, 3))
def test_every_epoch_has_each_task_once(sizes: list[int], seed: int, epoch: int) -> None:
    tasks = tasks_of(sizes)
    order = TaskOrder(tasks, seed, position=epoch * len(tasks))
    assert Counter(task.id for task in islice(order, len(tasks))) == Counter(task.id for task in tasks)


@given(sizes, st.integers(), st.integers(0, 60))
def test_a_position_is_all_it_takes_to_go_on(sizes: list[int], seed: int, position: int) -> None:
    whole = TaskOrder(tasks_of(sizes), seed)
    list(islice(whole, position))
    assert whole.position == position
    resumed = TaskOrder(tasks_of(sizes), seed, position=position)
    assert list(islice(whole, 20)) == list(islice(resumed, 20))


@given(sizes, st.integers(1, 40))
def test_every_stretch_mixes_the_domains_in_proportion(sizes: list[int], taken: int) -> None:
    tasks = tasks_of(sizes)
    counts = Counter(task.domain for task in islice(TaskOrder(tasks, 0), taken))
    for domain, size in enumerate(sizes):
        assert abs(counts[f"d{domain}"] - taken * size / len(tasks)) < len(sizes)


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
