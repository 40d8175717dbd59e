"""Which unit may start and which the trainer may take: windowed FIFO over prompt groups.

Invariant: the trainer never takes a unit outside the window, at most W - 1 units overtake the oldest one, and never more than B units are
launched and not yet taken. Pure logic: no I/O, no clock; whoever drives it persists what it decides (`store.py`).

The design follows the windowed FIFO of MiniMax's Forge (arXiv 2605.26494, section 6): strict order starves the trainer behind one slow
rollout, taking whatever ends first shifts the data towards short rollouts; a window gives up a little of either.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from openforge.pool.records import Recovery
from openforge.types import Settings

Policy = Literal["windowed", "fifo", "greedy"]
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

    def scheduler(self, units_per_step: int) -> Scheduler:
        return Scheduler(self.policy, (self.max_staleness + 1) * units_per_step, self.window, units_per_step)


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
    """Waiting for the trainer, in the order they finished."""
    takeable: int
    """How many of these a take could get now."""
    taken: int
    evicted: int
    staleness_bound: int | None


class Scheduler:
    """Numbers units at launch and hands finished ones to the trainer.

    With B = `queue`, W = `window`, P = `units_per_step`, the staleness bound is D = floor((B + W - 2) / P) optimizer steps. Why: look at a
    unit u as it is launched. Everything the trainer can take before it was either launched earlier, and of those at most B - 1 are still
    here, because u fills one of the B slots itself; or it is launched later and overtakes. While u is here the window starts at u or
    before, so an overtaker has a number in (u, u + W): at most W - 1 of them. So at most B + W - 2 units go first (`take` asserts it for
    every unit), these fill at most D whole steps, and u is in the step after.

    Steps are counted here in takes. They are weight versions, too, if a launch sees the weights of every step begun. One that happens while
    a step is under way does not: its first tokens come from weights one step older. `may_launch(training=…)` closes that gap by letting
    the units being trained hold their slots until their step is done; D then bounds version trained minus version sampled, exactly.
    """

    def __init__(self, policy: Policy, queue: int, window: Window, units_per_step: int) -> None:
        assert queue >= units_per_step >= 1, "a queue smaller than a step could never fill one"
        self.policy = policy
        self.queue = queue
        self.units_per_step = units_per_step
        self.window: int | None
        if policy == "greedy":
            self.window = None
        elif policy == "fifo":
            self.window = 1
        else:
            self.window = window if isinstance(window, int) else max(1, int(window * queue + 1e-9))
        self._next = 0
        self._head = 0
        self._oldest_running = 0
        self._open: dict[int, int | None] = {}
        """Unit launched and neither taken nor evicted -> units taken before its launch; None where an earlier process launched it."""
        self._finished: dict[int, None] = {}
        """By finish order."""
        self._sorted: list[int] = []
        """The same, by number."""
        self._taken = 0
        self._evicted = 0

    @property
    def head(self) -> int:
        """The oldest unit neither taken nor evicted (or the next to be launched); the window is [head, head + W)."""
        return self._head

    @property
    def outstanding(self) -> int:
        """Units launched and neither taken nor evicted."""
        return len(self._open)

    @property
    def staleness_bound(self) -> int | None:
        """D, in optimizer steps; None under `greedy`, where a unit can be overtaken for ever."""
        return None if self.window is None else (self.queue + self.window - 2) // self.units_per_step

    def may_launch(self, *, training: int = 0) -> bool:
        """Is a slot free? `training` units were taken for a step that has not published its weights yet, and are to hold their slots."""
        return len(self._open) + training < self.queue

    def launch(self) -> int:
        """Start the next unit; returns its number."""
        assert self.may_launch(), "no free slot"
        unit = self._next
        self._next += 1
        self._open[unit] = self._taken
        return unit

    def finish(self, unit: int) -> None:
        """All rollouts of the unit ended."""
        assert unit in self._open, f"unit {unit} is not outstanding"
        assert unit not in self._finished, f"unit {unit} finished before"
        self._finished[unit] = None
        insort(self._sorted, unit)
        self._advance()

    def evict(self, unit: int) -> None:
        """Give up an outstanding unit, running or finished: its slot is free and the head may pass it."""
        assert unit in self._open, f"unit {unit} is not outstanding"
        if unit in self._finished:
            del self._finished[unit]
            self._sorted.remove(unit)
        del self._open[unit]
        self._evicted += 1
        self._advance()

    def take(self, n: int) -> list[int] | None:
        """The next `n` units for the trainer, whose slots are free then; None, and no change, while fewer may be taken.

        The lowest numbers first; under `greedy`, the first finished.
        """
        assert n >= 1
        if len(self._finished) < n or len(takeable := self._takeable()) < n:
            return None
        units = list(takeable[:n])
        for unit in units:
            before = self._open.pop(unit)
            del self._finished[unit]
            if self.window is not None and before is not None:
                assert self._taken - before <= self.queue + self.window - 2, f"unit {unit} waited longer than the bound"
            self._taken += 1
        self._sorted = [unit for unit in self._sorted if unit in self._finished]
        self._advance()
        return units

    def restore(self, recovery: Recovery) -> None:
        """Start from where a run stands: same numbers, same places in the queue.

        Units of steps that no checkpoint covers are back, so more than `queue` can be outstanding; launching waits until they are trained.
        """
        assert self._next == 0, "restore comes before the first launch"
        self._next = recovery.next_unit
        running = [unit.unit for unit in recovery.running]
        self._open = dict.fromkeys(sorted([*running, *recovery.finished]))
        self._finished = dict.fromkeys(recovery.finished)
        self._sorted = sorted(recovery.finished)
        self._advance()

    def snapshot(self) -> ScheduleSnapshot:
        return ScheduleSnapshot(
            policy=self.policy,
            queue=self.queue,
            window=self.window,
            head=self._head,
            next_unit=self._next,
            running=tuple(unit for unit in self._open if unit not in self._finished),
            finished=tuple(self._finished),
            takeable=len(self._takeable()),
            taken=self._taken,
            evicted=self._evicted,
            staleness_bound=self.staleness_bound,
        )

    def _takeable(self) -> Sequence[int]:
        """The finished units the trainer may take, in the order it gets them.

        Lowest first, a take slides the window up to the oldest running unit, so that one alone decides how far the window reaches.
        """
        if self.window is None:
            return tuple(self._finished)
        return self._sorted[: bisect_left(self._sorted, self._oldest_running + self.window)]

    def _advance(self) -> None:
        while self._head < self._next and self._head not in self._open:
            self._head += 1
        while self._oldest_running < self._next and (self._oldest_running not in self._open or self._oldest_running in self._finished):
            self._oldest_running += 1
