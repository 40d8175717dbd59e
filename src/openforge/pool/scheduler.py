"""Which unit may start and which the trainer may take: windowed FIFO.

Invariant: the trainer never takes a unit outside the window, at most W - 1 units overtake the oldest one, at most B units are launched and
not yet trained, and no unit is trained more than D steps late. Pure logic: no I/O, no clock; whoever drives it persists what it decides
(`store.py`) and tells it what the clock says.

The design follows the windowed FIFO of MiniMax's Forge (arXiv 2605.26494, section 6): strict order starves the trainer behind one slow
rollout, taking whatever ends first shifts the data towards short rollouts; a window gives up a little of either.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from openforge.runfile.durations import Seconds
from openforge.types import Settings

Policy = Literal["windowed", "fifo", "greedy"]
OnDeadline = Literal["cut", "refill", "wait"]
Window = Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0.0, le=1.0)]


class ScheduleSettings(Settings):
    """`schedule:` of a run file."""

    policy: Policy = "windowed"
    """windowed; fifo: strictly in launch order (a window of 1); greedy: whatever finished first (no window, no bound)."""
    window: Window = 0.3
    """A whole number counts units; a fraction is of the queue."""
    max_staleness: int = Field(default=1, ge=0)
    """S: the bound on staleness under `fifo`, in optimizer steps; a window of W adds ceil((W - 1) / units_per_step). 0 is on-policy.
    The queue holds (S + 1) * units_per_step units."""
    unit: Literal["group", "rollout"] = "group"
    """What is launched, counted and taken as one: a whole group, or each of its rollouts by itself. See
    [training](training.md#single-rollouts-as-units)."""
    head_deadline: Seconds | None = None
    """How long the oldest running unit may run before `on_deadline` says what happens to it; by default as long as it likes."""
    on_deadline: OnDeadline = "cut"
    """cut: what runs of the unit is cancelled, and what finished is trained; where that is nothing to compare, as refill. refill: the unit
    is dropped, and the next one launched is of its domain. wait: it is only counted."""

    @model_validator(mode="after")
    def _deadlock_free(self) -> ScheduleSettings:
        if self.unit == "rollout" and self.max_staleness == 0:
            raise ValueError(
                "with `unit: rollout`, max_staleness must be at least 1: a group whose start the trainer has would wait for the rest"
            )
        return self

    def scheduler(self, units_per_step: int) -> Scheduler:
        return Scheduler(self.policy, (self.max_staleness + 1) * units_per_step, self.window, units_per_step, on_deadline=self.on_deadline)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSnapshot:
    """What the live view shows, and what a stalled run is diagnosed from."""

    policy: Policy
    queue: int
    window: int | None
    head: int
    next_unit: int
    running: tuple[int, ...]
    finished: tuple[int, ...]
    """Waiting for the trainer, in the order it gets them."""
    takeable: int
    """How many of these the window lets through now."""
    training: int
    """Taken for the step under way."""
    taken: int
    evicted: int
    overdue: int
    """Units that ran past the head deadline while they were the head."""
    staleness_bound: int | None


class Scheduler:
    """Numbers units at launch and hands finished ones to the trainer, P = `units_per_step` at a time.

    With B = `queue` and W = `window`, the staleness bound is D = floor((B + W - 2) / P) steps, and 0 where B = P. Why: look at a unit u as
    it is launched. What goes before it was either launched earlier, and of those at most B - 1 are still here, because u fills one of the
    B slots itself; or it is launched later and overtakes. While u is here the window starts at u or before, so an overtaker has a number in
    (u, u + W): at most W - 1 of them. So at most B + W - 2 units go first, these fill at most D whole steps, and u is in the step after.
    Where B = P no step can be filled without u.

    Units of the step under way hold their slots until `published`, so that D bounds *version trained minus version sampled* exactly;
    `take` asserts it for every unit.
    """

    def __init__(self, policy: Policy, queue: int, window: Window, units_per_step: int, *, on_deadline: OnDeadline = "wait") -> None:
        assert queue >= units_per_step >= 1, "a queue smaller than a step could never fill one"
        self.policy = policy
        self.queue = queue
        self.units_per_step = units_per_step
        self.on_deadline = on_deadline
        self.window: int | None
        if policy == "greedy":
            self.window = None
        elif policy == "fifo":
            self.window = 1
        else:
            self.window = window if isinstance(window, int) else max(1, int(window * queue + 1e-9))
        self._next = 0
        self._head = 0
        self._oldest = 0
        """The oldest unit that runs (or the next to be launched)."""
        self._open: dict[int, int | None] = {}
        """Unit launched and neither taken nor evicted -> steps published before its launch; None where an earlier process launched it."""
        self._running: set[int] = set()
        self._finished: list[int] = []
        """In the order the trainer gets them: by number, under `greedy` as they finished."""
        self._overdue: set[int] = set()
        self._training = 0
        self._steps = 0
        self._taken = 0
        self._evicted = 0
        self._overdue_ever = 0

    @property
    def head(self) -> int:
        """The oldest unit neither taken nor evicted (or the next to be launched); the window is [head, head + W)."""
        return self._head

    @property
    def next_unit(self) -> int:
        """The number that the next launch gives."""
        return self._next

    @property
    def oldest_running(self) -> int | None:
        """The unit that holds the window where it is, once what finished before it is taken: the one that has the head deadline."""
        return self._oldest if self._running else None

    @property
    def outstanding(self) -> int:
        """Units launched and neither taken nor evicted."""
        return len(self._open)

    @property
    def staleness_bound(self) -> int | None:
        """D, in optimizer steps; None under `greedy`, where a unit can be overtaken for ever."""
        if self.window is None:
            return None
        return 0 if self.queue == self.units_per_step else (self.queue + self.window - 2) // self.units_per_step

    @property
    def training(self) -> int:
        """Units taken for the step under way."""
        return self._training

    def runs(self, unit: int) -> bool:
        """Whether it was launched and has neither finished nor been evicted."""
        return unit in self._running

    def may_launch(self) -> bool:
        """Is a slot free?"""
        return len(self._open) + self._training < self.queue

    def launch(self) -> int:
        """Start the next unit; returns its number."""
        assert self.may_launch(), "no free slot"
        unit = self._next
        self._next += 1
        self._open[unit] = self._steps
        self._running.add(unit)
        return unit

    def finish(self, unit: int) -> None:
        """The trainer may have it: all its rollouts ended, by themselves or cut."""
        assert unit in self._running, f"unit {unit} does not run"
        self._running.remove(unit)
        if self.window is None:
            self._finished.append(unit)
        else:
            insort(self._finished, unit)
        self._advance()

    def overdue(self, unit: int, *, trainable: bool) -> OnDeadline:
        """The head ran past its deadline, says the driver's clock. Counted once; returns what the driver has to do.

        `cut`: end what runs of it, then `finish` it. `refill`: end what runs of it; it is evicted. `wait`: nothing.
        `trainable`: whether what finished of it is enough to train on; otherwise there is nothing to cut down to.
        """
        assert unit in self._running, f"unit {unit} does not run"
        self._overdue_ever += unit not in self._overdue
        self._overdue.add(unit)
        verdict: OnDeadline = "refill" if self.on_deadline == "cut" and not trainable else self.on_deadline
        if verdict == "refill":
            self.evict(unit)
        return verdict

    def evict(self, unit: int) -> None:
        """Give up an outstanding unit, running or finished: its slot is free and the head may pass it."""
        assert unit in self._open, f"unit {unit} is not outstanding"
        if unit in self._running:
            self._running.remove(unit)
        else:
            self._finished.remove(unit)
        self._close(unit)
        self._evicted += 1
        self._advance()

    def take(self) -> list[int] | None:
        """The units of the next step; None, and no change, while the window lets fewer than P through.

        The lowest numbers first; under `greedy`, the first finished.
        """
        assert not self._training, "the step under way comes first"
        if self._takeable() < self.units_per_step:
            return None
        units, self._finished = self._finished[: self.units_per_step], self._finished[self.units_per_step :]
        for unit in units:
            launched, bound = self._close(unit), self.staleness_bound
            if bound is not None and launched is not None:
                assert self._steps - launched <= bound, f"unit {unit} waited longer than the bound"
        self._training = len(units)
        self._taken += len(units)
        self._advance()
        return units

    def published(self) -> None:
        """The step under way is done and its weights are where units sample from: its slots are free."""
        self._training = 0
        self._steps += 1

    def restore(self, next_unit: int, running: Iterable[int], finished: Iterable[int]) -> None:
        """Start from where a run stands: same numbers, same places in the queue; `finished` in the order they did.

        Units of steps that no checkpoint covers are back, so more than `queue` can be outstanding; launching waits until they are trained.
        """
        assert self._next == 0, "restore comes before the first launch"
        self._next = next_unit
        self._running = set(running)
        waiting = list(finished)
        self._finished = waiting if self.window is None else sorted(waiting)
        self._open = dict.fromkeys(sorted([*self._running, *waiting]))
        self._advance()

    def snapshot(self) -> ScheduleSnapshot:
        return ScheduleSnapshot(
            policy=self.policy,
            queue=self.queue,
            window=self.window,
            head=self._head,
            next_unit=self._next,
            running=tuple(sorted(self._running)),
            finished=tuple(self._finished),
            takeable=self._takeable(),
            training=self._training,
            taken=self._taken,
            evicted=self._evicted,
            overdue=self._overdue_ever,
            staleness_bound=self.staleness_bound,
        )

    def _takeable(self) -> int:
        """How many of the finished units the trainer may take.

        Lowest first, a take slides the window up to the oldest running unit, so that one alone decides how far the window reaches.
        """
        return len(self._finished) if self.window is None else bisect_left(self._finished, self._oldest + self.window)

    def _close(self, unit: int) -> int | None:
        self._overdue.discard(unit)
        return self._open.pop(unit)

    def _advance(self) -> None:
        while self._head < self._next and self._head not in self._open:
            self._head += 1
        while self._oldest < self._next and self._oldest not in self._running:
            self._oldest += 1
