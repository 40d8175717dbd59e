from __future__ import annotations

import copy
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from openforge.pool import Scheduler, ScheduleSettings
from openforge.pool.scheduler import Policy


class Model:
    """The scheduler beside a slow, obvious account of what it may do; every action checks one against the other.

    `during` says whether a step under way holds the slots of its units at launch; only then is the bound one on weight versions.
    """

    def __init__(self, policy: Policy, queue: int, window: int, per_step: int, *, during: bool) -> None:
        self.scheduler = Scheduler(policy, queue, window, per_step)
        self.queue, self.per_step, self.during = queue, per_step, during
        self.window = {"windowed": window, "fifo": 1, "greedy": None}[policy]
        self.open: dict[int, int] = {}
        """Unit -> weight version at its launch."""
        self.finished: list[int] = []
        self.taken: list[int] = []
        self.evicted: list[int] = []
        self.next = 0
        self.version = 0
        self.training = 0

    def key(self) -> tuple[object, ...]:
        """What the future depends on: versions relative to now, and how often each open unit was overtaken."""
        open_ = tuple((unit - self.next, self.version - version, self.overtakes(unit)) for unit, version in self.open.items())
        return self.next, open_, tuple(unit - self.next for unit in self.finished), self.training

    def overtakes(self, unit: int) -> int:
        return sum(other > unit for other in self.taken)

    def may_launch(self) -> bool:
        may = self.scheduler.may_launch(training=self.training if self.during else 0)
        assert may == (len(self.open) + (self.training if self.during else 0) < self.queue)
        return may

    def launch(self) -> None:
        assert self.scheduler.launch() == self.next
        self.open[self.next] = self.version
        self.next += 1
        self.check()

    def finish(self, unit: int) -> None:
        self.scheduler.finish(unit)
        self.finished.append(unit)
        self.check()

    def evict(self, unit: int) -> None:
        self.scheduler.evict(unit)
        self.evicted.append(unit)
        del self.open[unit]
        if unit in self.finished:
            self.finished.remove(unit)
        self.check()

    def expected(self, n: int) -> list[int] | None:
        left, finished, units = sorted(self.open), list(self.finished), []
        for _ in range(n):
            inside = [unit for unit in finished if self.window is None or unit < left[0] + self.window]
            if not inside:
                return None
            unit = inside[0] if self.window is None else min(inside)
            units.append(unit)
            finished.remove(unit)
            left.remove(unit)
        return units

    def take(self, n: int) -> list[int] | None:
        expected, units = self.expected(n), self.scheduler.take(n)
        assert units == expected
        if units is not None:
            bound = self.scheduler.staleness_bound
            for unit in units:
                self.finished.remove(unit)
                self.taken.append(unit)
                version = self.open.pop(unit)
                if bound is not None:
                    assert self.version - version <= bound + (not self.during)
                if self.window is not None:
                    assert all(self.overtakes(other) <= self.window - 1 for other in self.open)
            self.training = len(units)
        elif not set(self.open) - set(self.finished):
            assert len(self.open) < n, "everything finished, and the trainer still waits"
        self.check()
        return units

    def trained(self) -> None:
        self.version += 1
        self.training = 0

    def check(self) -> None:
        assert sorted([*self.open, *self.taken, *self.evicted]) == list(range(self.next)), "every unit is in one place"
        assert len(self.open) <= self.queue
        snapshot = self.scheduler.snapshot()
        assert snapshot.head == self.scheduler.head == min(self.open, default=self.next)
        assert set(snapshot.running) == set(self.open) - set(self.finished)
        assert list(snapshot.finished) == self.finished
        assert (snapshot.taken, snapshot.evicted, snapshot.next_unit) == (len(self.taken), len(self.evicted), self.next)
        assert self.scheduler.outstanding == len(self.open)

    def moves(self, units: int, evictions: int) -> list[tuple[str, int]]:
        moves = [("finish", unit) for unit in self.open if unit not in self.finished]
        if len(self.evicted) < evictions:
            moves += [("evict", unit) for unit in self.open]
        if self.next < units and self.may_launch():
            moves.append(("launch", 0))
        return [*moves, ("trained", 0)] if self.training else [*moves, ("take", self.per_step)]

    def make(self, move: tuple[str, int]) -> None:
        name, argument = move
        getattr(self, name)(*[argument] * (name not in ("launch", "trained")))


@pytest.mark.parametrize("during", [True, False], ids=["slots_held_while_training", "slots_freed_at_take"])
@pytest.mark.parametrize(
    ("policy", "queue", "window", "per_step"),
    [
        ("windowed", 2, 2, 1),
        ("windowed", 3, 2, 1),
        ("windowed", 4, 2, 2),
        ("windowed", 4, 3, 2),
        ("windowed", 2, 5, 2),
        ("fifo", 2, 1, 1),
        ("fifo", 2, 1, 2),
        ("greedy", 3, 1, 1),
    ],
)
def test_every_schedule_of_five_units_keeps_the_laws(policy: Policy, queue: int, window: int, per_step: int, during: bool) -> None:
    start = Model(policy, queue, window, per_step, during=during)
    seen = {start.key()}
    frontier = [start]
    while frontier:
        model = frontier.pop()
        for move in model.moves(units=5, evictions=1):
            after = copy.deepcopy(model)
            after.make(move)
            if (key := (after.key(), len(after.evicted))) not in seen:
                seen.add(key)
                frontier.append(after)
    assert len(seen) > 30


@settings(max_examples=60, deadline=None)
@given(
    policy=st.sampled_from(["windowed", "fifo", "greedy"]),
    per_step=st.integers(1, 5),
    staleness=st.integers(0, 3),
    window=st.integers(1, 25),
    during=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_long_random_schedules_keep_the_laws(policy: Policy, per_step: int, staleness: int, window: int, during: bool, seed: int) -> None:
    model = Model(policy, (staleness + 1) * per_step, window, per_step, during=during)
    chance = random.Random(seed)
    # Some units are stragglers: the window and the bound only show when something blocks the head.
    slow = chance.random() * 0.9
    for _ in range(300):
        moves = model.moves(units=10**6, evictions=10**6)
        moves = [move for move in moves if move[0] != "evict" or chance.random() < 0.02]
        moves = [move for move in moves if move[0] != "finish" or move[1] % 7 or chance.random() > slow]
        if moves:
            model.make(chance.choice(moves))


@given(per_step=st.integers(1, 8), staleness=st.integers(0, 4), window=st.integers(1, 40))
def test_the_bound_is_the_staleness_plus_what_the_window_adds(per_step: int, staleness: int, window: int) -> None:
    scheduler = Scheduler("windowed", (staleness + 1) * per_step, window, per_step)
    assert scheduler.staleness_bound == staleness + -(-(window - 1) // per_step)


def test_the_bound_is_reached() -> None:
    """B = 4, W = 3, P = 2: a straggler launched last is overtaken by W - 1 units and waits for B - 1 older ones: 2 whole steps."""
    model = Model("windowed", 4, 3, 2, during=True)
    for _ in range(4):
        model.launch()
    model.finish(0)
    model.finish(1)
    assert model.take(2) == [0, 1]
    model.trained()
    model.launch()
    model.launch()
    for unit in (2, 4):
        model.finish(unit)
    assert model.take(2) == [2, 4]
    model.trained()
    model.launch()
    model.finish(5)
    assert model.take(2) is None
    model.finish(3)
    assert model.scheduler.staleness_bound == model.version - model.open[3] == 2
    assert model.take(2) == [3, 5]


def test_a_straggler_blocks_only_beyond_the_window() -> None:
    scheduler = Scheduler("windowed", 8, 3, 1)
    for _ in range(8):
        scheduler.launch()
    for unit in (5, 2, 3, 1):
        scheduler.finish(unit)
    assert scheduler.take(1) == [1]
    assert scheduler.take(1) == [2]
    assert scheduler.take(1) is None
    assert scheduler.snapshot().takeable == 0
    scheduler.evict(0)
    assert scheduler.head == 4 - 1
    assert scheduler.take(2) == [3, 5]


def test_policies_differ_only_in_the_window() -> None:
    taken = {}
    for policy in ("windowed", "fifo", "greedy"):
        scheduler = Scheduler(policy, 4, 2, 1)
        for _ in range(4):
            scheduler.launch()
        for unit in (3, 1):
            scheduler.finish(unit)
        taken[policy] = scheduler.take(1)
    assert taken == {"windowed": [1], "fifo": None, "greedy": [3]}


def test_on_policy_launches_nothing_while_a_step_is_under_way() -> None:
    scheduler = ScheduleSettings(policy="fifo", max_staleness=0).scheduler(2)
    for _ in range(2):
        scheduler.finish(scheduler.launch())
    assert scheduler.take(2) == [0, 1]
    assert not scheduler.may_launch(training=2)
    assert scheduler.may_launch()
    assert scheduler.staleness_bound == 0


@pytest.mark.parametrize(
    ("window", "per_step", "expected"), [(0.3, 4, 2), (0.3, 5, 3), (0.01, 4, 1), (1.0, 4, 8), (1, 4, 1), (3, 4, 3), (0.29, 50, 29)]
)
def test_a_window_is_a_count_or_a_fraction_of_the_queue(window: float | int, per_step: int, expected: int) -> None:
    assert ScheduleSettings(window=window).scheduler(per_step).window == expected


@pytest.mark.parametrize("settings", [{"window": 0}, {"window": 0.0}, {"window": 1.5}, {"max_staleness": -1}, {"policy": "lifo"}])
def test_impossible_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ScheduleSettings.model_validate(settings)
