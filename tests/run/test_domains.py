"""The mix that the trainer gets, with domains whose rollouts take very different times, against the stated tolerance."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openforge.pool import Scheduler
from openforge.pool.scheduler import Policy
from openforge.run.domains import Domains
from openforge.tasks import TaskOrder
from openforge.types import Task, UserError


class Simulation:
    """A run in simulated time; `mix`: weight and mean seconds of each domain. The trainer takes no time."""

    def __init__(self, policy: Policy, queue: int, window: int, per_step: int, mix: Sequence[tuple[float, float]], seed: int) -> None:
        self.scheduler = Scheduler(policy, queue, window, per_step, on_deadline="refill")
        tasks = [Task(id=f"t{d}", instruction="x", domain=f"d{d}") for d in range(len(mix))]
        self.order = TaskOrder(tasks, 0, weights={f"d{d}": weight for d, (weight, _) in enumerate(mix)})
        self.domains = Domains(self.order.shares, self.scheduler.window)
        self.seconds = {f"d{d}": mean for d, (_, mean) in enumerate(mix)}
        self.chance = random.Random(seed)
        self.ends: list[tuple[float, int]] = []
        self.alive: set[int] = set()
        self.now = 0.0

    def launch(self) -> None:
        while self.scheduler.may_launch():
            number, task = self.scheduler.launch(), next(self.order)
            self.domains.launch(number, task.domain)
            self.alive.add(number)
            heapq.heappush(self.ends, (self.now + self.chance.expovariate(1 / self.seconds[task.domain]), number))

    def lose_head(self) -> None:
        """The oldest running unit is dropped at its deadline."""
        unit = self.scheduler.oldest_running
        assert unit is not None
        assert self.scheduler.overdue(unit, trainable=False) == "refill"
        self.alive.remove(unit)
        self.order.give_back(self.domains.evict(unit, self.scheduler.next_unit))

    def step(self, loss: float = 0.0) -> None:
        """Until the trainer has its next step; each time something ends, the head is lost with probability `loss`."""
        self.launch()
        while (units := self.scheduler.take()) is None:
            if self.scheduler.oldest_running is not None and self.chance.random() < loss:
                self.lose_head()
                self.launch()
                continue
            self.now, unit = heapq.heappop(self.ends)
            if unit in self.alive:
                self.scheduler.finish(unit)
        self.alive.difference_update(units)
        self.domains.consume(units, self.scheduler.head)
        self.scheduler.published()

    def off(self) -> dict[str, float]:
        total = self.domains.consumed.total()
        return {name: abs(self.domains.consumed[name] - share * total) for name, share in self.domains.shares.items()}


mixes = st.lists(st.tuples(st.floats(0.05, 1), st.sampled_from([0.1, 1.0, 10.0, 1000.0])), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(mixes, st.integers(1, 8), st.integers(0, 3), st.floats(0.05, 1), st.sampled_from([0.0, 0.0, 0.02, 0.3]), st.integers(0, 2**32))
def test_the_mix_is_held_whatever_the_durations(
    mix: list[tuple[float, float]], per_step: int, staleness: int, window: float, loss: float, seed: int
) -> None:
    queue = (staleness + 1) * per_step
    run = Simulation("windowed", queue, max(1, int(window * queue)), per_step, mix, seed)
    for _ in range(100):
        run.step(loss)  # `Domains.consume` asserts the tolerance
        if not loss:
            assert all(off <= run.domains.tolerance(name) for name, off in run.off().items())


def test_a_domain_a_hundred_times_slower_does_not_fade() -> None:
    """Half of the mix takes 100 times longer. Windowed, it keeps its half; greedy starts with the fast half."""
    shares = {}
    for policy in ("windowed", "greedy"):
        run = Simulation(policy, 64, 16, 8, [(1.0, 1.0), (1.0, 100.0)], seed=0)
        early: Counter[str] = Counter()
        for _ in range(400):
            run.step()
            early = early or (run.domains.consumed.copy() if run.domains.consumed.total() >= 64 else early)
        shares[policy] = early["d1"] / early.total(), run.domains.consumed["d1"] / run.domains.consumed.total()
    assert shares["windowed"][0] > 0.4
    assert shares["windowed"][1] == pytest.approx(0.5, abs=0.005)
    assert shares["greedy"][0] < 0.2
    assert shares["greedy"][1] < 0.495


def test_the_row_tells_shares_events_and_what_the_batch_says() -> None:
    domains = Domains({"a": 0.75, "b": 0.25}, window=4)
    for unit, domain in enumerate("aaba"):
        domains.launch(unit, domain)
    domains.overdue(2, "refill")
    assert domains.evict(2, next_unit=4) == "b"
    domains.overdue(1, "cut")
    domains.consume([0, 1], head=3)
    row = domains.row({"a": {"groups": 2, "reward_mean": 0.5}})
    assert row["a"] == {
        "share": 0.75, "launched_share": 0.75, "consumed_share": 1.0, "groups": 2, "reward_mean": 0.5, "overdue": 1, "cut": 1, "refill": 0,
    }  # fmt: skip
    assert row["b"] == {"share": 0.25, "launched_share": 0.25, "consumed_share": 0.0, "overdue": 1, "cut": 0, "refill": 1}
    assert domains.row({})["b"]["overdue"] == 0, "events are since the last row"


def test_a_record_made_under_other_shares_is_refused() -> None:
    record = [(unit, "ab"[unit % 2], True, False) for unit in range(40)]
    Domains({"a": 0.5, "b": 0.5}, 2).restore(record, 40)
    with pytest.raises(UserError, match=r"domain a is 16\.0 units off its share of 40: tasks\.weights"):
        Domains({"a": 0.9, "b": 0.1}, 2).restore(record, 40)
