"""What the pool keeps beside calls and rollouts: units, checkpoints, and what a crash left to do.

Invariant: a unit is in exactly one state, and only moves running -> finished -> trained or running | finished -> evicted.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from openforge.types import Outcome


class UnitState(enum.StrEnum):
    RUNNING = "running"
    FINISHED = "finished"
    """All its rollouts ended; it waits for the trainer, or was taken by a step that no checkpoint covers yet."""
    TRAINED = "trained"
    """A durable checkpoint contains its effect."""
    EVICTED = "evicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The unit of scheduling: `group_size` rollouts of one task, a whole prompt group or (with 1) one of it. Numbered in launch order."""

    unit: int
    task_id: str
    group_size: int
    state: UnitState
    step: int | None = None
    """The optimizer step that trained it."""
    reason: str = ""
    """Why it was evicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose files were complete before this row was written."""

    step: int
    """The last optimizer step it contains."""
    version: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place of a unit that has to be started again, and the number of the attempt to start it as."""

    index: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedUnit:
    """A unit the crash interrupted: only the `missing` places run again; the unit keeps its number, hence its place in the queue."""

    unit: int
    task_id: str
    group_size: int
    missing: tuple[Place, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Where a run stands when it is opened again: everything after the last checkpoint is back in the queue."""

    checkpoint: Checkpoint | None
    """Where training goes on; None means from the initial model, step 0."""
    next_unit: int
    """The number the next launched unit gets."""
    finished: tuple[int, ...]
    """Units that wait for the trainer, in the order they finished."""
    running: tuple[UnfinishedUnit, ...]
    """By unit number; none of them has an empty `missing`."""
    cancelled: tuple[str, ...]
    """Rollouts of the dead process that had no end; they are `Outcome.CANCELLED` now, and their calls are kept."""

    @property
    def step(self) -> int:
        return self.checkpoint.step if self.checkpoint else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Totals of a run."""

    calls: int
    delta_tokens: int
    """Prompt tokens stored: the new ones of each call."""
    sampled_tokens: int
    rollouts: dict[Outcome | None, int]
    """By outcome; None counts those still running."""
    units: dict[UnitState, int]
