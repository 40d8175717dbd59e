from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pydantic import ValidationError

from openforge.pool import Scheduler, ScheduleSettings
from openforge.pool.scheduler import OnDeadline, Policy

Move = tuple[str, int]


class Model:
    """The scheduler beside a slow, obvious account of what it may do; every action checks one against the other."""

    def __init__(self, policy: Policy, queue: int, window: int, per_step: int, on_deadline: OnDeadline) -> None:
        self.scheduler = Scheduler(policy, queue, window, per_step, on_deadline=on_deadline)
        self.queue, self.per_step, self.on_deadline = queue, per_step, on_deadline
        self.window = {"windowed": window, "fifo": 1, "greedy": None}[policy]
        self.open: dict[int, int] = {}
        """Unit -> weight version at its launch."""
        self.finished: list[int] = []
        """In the order they did."""
        self.cut: set[int] = set()
        """Running units that were told to end."""
        self.overdue_units: set[int] = set()
        self.taken: set[int] = set()
        self.evicted: set[int] = set()
        self.next = self.version = self.training = 0
        self.stalest = 0
        """The largest staleness of any unit taken."""

    def clone(self) -> Model:
        twin = copy.copy(self)
        twin.scheduler = copy.copy(self.scheduler)
        for noun in (twin, twin.scheduler):
            for name, value in vars(noun).items():
                if isinstance(value, dict | list | set):
                    setattr(noun, name, value.copy())
        return twin

    def key(self) -> tuple[Any, ...]:
        """What the future depends on: how late and how often overtaken each open unit is, which ended in which order, who was told."""
        open_ = tuple((unit, self.version - version, self.overtakes(unit)) for unit, version in self.open.items())
        order = tuple(self.finished) if self.window is None else frozenset(self.finished)
        return self.next, open_, order, frozenset(self.cut), len(self.overdue_units), self.training, len(self.evicted)

    def overtakes(self, unit: int) -> int:
        return sum(other > unit for other in self.taken)

    @property
    def running(self) -> list[int]:
        return [unit for unit in self.open if unit not in self.finished]

    def may_launch(self) -> bool:
        may = self.scheduler.may_launch()
        assert may == (len(self.open) + self.training < self.queue)
        return may

    def launch(self) -> None:
        assert self.scheduler.launch() == self.next
        self.open[self.next] = self.version
        self.next += 1

    def finish(self, unit: int) -> None:
        self.scheduler.finish(unit)
        self.finished.append(unit)
        self.cut.discard(unit)

    def evict(self, unit: int) -> None:
        self.scheduler.evict(unit)
        self.drop(unit)

    def drop(self, unit: int) -> None:
        self.evicted.add(unit)
        del self.open[unit]
        self.cut.discard(unit)
        if unit in self.finished:
            self.finished.remove(unit)

    def overdue(self, trainable: int) -> None:
        """The head's deadline passes. Whoever is told to cut cancels what runs, after which the unit finishes."""
        unit = min(self.running)
        assert self.scheduler.oldest_running == unit
        verdict = self.scheduler.overdue(unit, trainable=bool(trainable))
        self.overdue_units.add(unit)
        assert verdict == ("refill" if self.on_deadline == "cut" and not trainable else self.on_deadline)
        if verdict == "refill":
            self.drop(unit)
        elif verdict == "cut":
            self.cut.add(unit)

    def expected(self) -> list[int] | None:
        left, finished, units = sorted(self.open), list(self.finished), []
        for _ in range(self.per_step):
            inside = [unit for unit in finished if self.window is None or unit < left[0] + self.window]
            if not inside:
                return None
            unit = inside[0] if self.window is None else min(inside)
            units.append(unit)
            finished.remove(unit)
            left.remove(unit)
        return units

    def take(self) -> None:
        expected, units = self.expected(), self.scheduler.take()
        assert units == expected
        if units is None:
            assert self.running or len(self.open) < self.per_step, "everything finished, and the trainer still waits"
            return
        for unit in units:
            self.finished.remove(unit)
            self.taken.add(unit)
            staleness = self.version - self.open.pop(unit)
            self.stalest = max(self.stalest, staleness)
            if self.scheduler.staleness_bound is not None:
                assert staleness <= self.scheduler.staleness_bound
        if self.window is not None:
            assert all(self.overtakes(other) <= self.window - 1 for other in self.open)
        self.training = len(units)

    def published(self) -> None:
        self.scheduler.published()
        self.version += 1
        self.training = 0

    def check(self) -> None:
        assert sorted([*self.open, *self.taken, *self.evicted]) == list(range(self.next)), "every unit is in one place"
        assert len(self.open) + self.training <= self.queue
        snapshot = self.scheduler.snapshot()
        assert snapshot.head == self.scheduler.head == min(self.open, default=self.next)
        assert self.scheduler.oldest_running == min(self.running, default=None)
        assert list(snapshot.running) == sorted(self.running)
        assert list(snapshot.finished) == (self.finished if self.window is None else sorted(self.finished))
        assert (snapshot.taken, snapshot.evicted, snapshot.next_unit) == (len(self.taken), len(self.evicted), self.next)
        assert (snapshot.overdue, snapshot.training) == (len(self.overdue_units), self.training)
        if not self.running and not self.training and not self.may_launch():
            assert self.expected() is not None, "deadlock: nothing runs, nothing trains, nothing may start, nothing may be taken"

    def moves(self, units: int, evictions: int) -> list[Move]:
        moves = [("finish", unit) for unit in self.running]
        if self.running and min(self.running) not in self.cut | self.overdue_units:
            moves += [("overdue", 1), ("overdue", 0)] if self.on_deadline == "cut" else [("overdue", 1)]
        if len(self.evicted) < evictions:
            moves += [("evict", unit) for unit in self.open]
        if self.next < units and self.may_launch():
            moves.append(("launch", -1))
        return [*moves, ("published", -1) if self.training else ("take", -1)]

    def make(self, move: Move) -> None:
        name, argument = move
        getattr(self, name)(*([] if argument < 0 else [argument]))
        self.check()


def explore(start: Model, units: int, evictions: int) -> tuple[int, int]:
    """Every interleaving of every move, from `start` on. Returns the number of states, and the largest staleness in any of them."""
    seen = {start.key()}
    frontier, stalest = [start], 0
    while frontier:
        model = frontier.pop()
        for move in model.moves(units, evictions):
            after = model.clone()
            after.make(move)
            stalest = max(stalest, after.stalest)
            if (key := after.key()) not in seen:
                seen.add(key)
                frontier.append(after)
    return len(seen), stalest


@pytest.mark.parametrize("on_deadline", ["cut", "refill", "wait"])
@pytest.mark.parametrize(
    ("policy", "queue", "window", "per_step"),
    [
        ("windowed", 2, 2, 1),
        ("windowed", 3, 2, 1),
        ("windowed", 3, 4, 1),
        ("windowed", 4, 2, 2),
        ("windowed", 4, 3, 2),
        ("windowed", 2, 5, 2),
        ("windowed", 3, 4, 3),
        ("fifo", 1, 1, 1),
        ("fifo", 3, 1, 1),
        ("fifo", 4, 1, 2),
        ("greedy", 2, 1, 1),
        ("greedy", 4, 1, 2),
    ],
)
def test_every_schedule_of_six_units_keeps_the_laws(
    policy: Policy, queue: int, window: int, per_step: int, on_deadline: OnDeadline
) -> None:
    start = Model(policy, queue, window, per_step, on_deadline)
    states, stalest = explore(start, units=6, evictions=on_deadline == "wait")
    bound = start.scheduler.staleness_bound
    assert states > 20
    assert bound is None or stalest == bound, "the bound is reached, so it is the smallest there is"


class LongSchedules(RuleBasedStateMachine):
    """The same laws over long runs of large queues, with stragglers."""

    @initialize(
        policy=st.sampled_from(["windowed", "fifo", "greedy"]),
        per_step=st.integers(1, 5),
        staleness=st.integers(0, 3),
        window=st.integers(1, 25),
        on_deadline=st.sampled_from(["cut", "refill", "wait"]),
    )
    def start(self, policy: Policy, per_step: int, staleness: int, window: int, on_deadline: OnDeadline) -> None:
        self.model = Model(policy, (staleness + 1) * per_step, window, per_step, on_deadline)

    @rule(most=st.integers(1, 20))
    def launch(self, most: int) -> None:
        while most and self.model.may_launch():
            self.model.launch()
            most -= 1

    @rule(places=st.lists(st.integers(0, 30), min_size=1, max_size=20))
    def finish(self, places: list[int]) -> None:
        """Those at these places among what runs; place 0 is the head, which is rare here, and so it is what others wait for."""
        for place in places:
            if place < len(self.model.running):
                self.model.finish(sorted(self.model.running)[place])

    @rule()
    def train(self) -> None:
        if self.model.training:
            self.model.published()
        self.model.take()

    @rule(place=st.integers(0, 30))
    def evict(self, place: int) -> None:
        if place < len(self.model.open):
            self.model.evict(list(self.model.open)[place])

    @precondition(lambda self: self.model.running)
    @rule(trainable=st.integers(0, 1))
    def overdue(self, trainable: int) -> None:
        self.model.overdue(trainable)

    @invariant()
    def holds(self) -> None:
        self.model.check()


TestLongSchedules = LongSchedules.TestCase
TestLongSchedules.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@settings(deadline=None)
@given(per_step=st.integers(1, 8), staleness=st.integers(0, 4), window=st.integers(1, 40))
def test_the_bound_is_reached_whatever_the_settings(per_step: int, staleness: int, window: int) -> None:
    """The straggler is launched last, waits for all that are older, and is then overtaken by all that may."""
    model = Model("windowed", (staleness + 1) * per_step, window, per_step, "wait")
    straggler = model.queue - 1
    while straggler in model.open or not model.next:
        while model.may_launch():
            model.launch()
        for unit in model.running:
            if unit != straggler:
                model.finish(unit)
        model.take()
        if not model.training:
            model.finish(straggler)
            model.take()
        model.published()
        model.check()
    bound = staleness + -(-(window - 1) // per_step) if staleness else 0
    assert model.stalest == model.scheduler.staleness_bound == bound


def test_a_straggler_blocks_only_beyond_the_window() -> None:
    scheduler = Scheduler("windowed", 8, 3, 1)
    for _ in range(8):
        scheduler.launch()
    for unit in (5, 2, 3, 1):
        scheduler.finish(unit)
    taken = []
    for _ in range(2):
        taken.append(scheduler.take())
        scheduler.published()
    assert taken == [[1], [2]]
    assert scheduler.take() is None
    assert scheduler.snapshot().takeable == 0
    scheduler.evict(0)
    assert scheduler.head == 3
    assert scheduler.take() == [3]


def test_policies_differ_only_in_the_window() -> None:
    taken = {}
    for policy in ("windowed", "fifo", "greedy"):
        scheduler = Scheduler(policy, 4, 2, 1)
        for _ in range(4):
            scheduler.launch()
        for unit in (3, 1):
            scheduler.finish(unit)
        taken[policy] = scheduler.take()
    assert taken == {"windowed": [1], "fifo": None, "greedy": [3]}


def test_on_policy_launches_nothing_while_a_step_is_under_way() -> None:
    scheduler = ScheduleSettings(policy="fifo", max_staleness=0).scheduler(2)
    for _ in range(2):
        scheduler.finish(scheduler.launch())
    assert scheduler.take() == [0, 1]
    assert not scheduler.may_launch()
    scheduler.published()
    assert scheduler.may_launch()
    assert scheduler.staleness_bound == 0


def test_a_restored_queue_goes_on_where_it_was() -> None:
    scheduler = Scheduler("windowed", 4, 2, 2)
    scheduler.restore(9, running=[6, 3], finished=[5, 4])
    assert (scheduler.head, scheduler.oldest_running, scheduler.next_unit) == (3, 3, 9)
    assert scheduler.snapshot().finished == (4, 5)
    assert scheduler.take() is None
    scheduler.finish(3)
    assert scheduler.take() == [3, 4]
    scheduler.published()
    assert scheduler.launch() == 9


@pytest.mark.parametrize(
    ("window", "per_step", "expected"), [(0.3, 4, 2), (0.3, 5, 3), (0.01, 4, 1), (1.0, 4, 8), (1, 4, 1), (3, 4, 3), (0.29, 50, 29)]
)
def test_a_window_is_a_count_or_a_fraction_of_the_queue(window: float | int, per_step: int, expected: int) -> None:
    assert ScheduleSettings(window=window).scheduler(per_step).window == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"window": 0},
        {"window": 0.0},
        {"window": 1.5},
        {"max_staleness": -1},
        {"policy": "lifo"},
        {"head_deadline": 0},
        {"on_deadline": "drop"},
        {"unit": "rollout", "max_staleness": 0},
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ScheduleSettings.model_validate(settings)
