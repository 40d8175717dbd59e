"""What opening a run again has to put right.

Invariant: afterwards every rollout has an outcome, every unit is evicted, trained by a step that a checkpoint contains, waiting, or short
of named places; so going on trains every unit exactly once. Steps after the last checkpoint need no undoing: their units were never marked.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection

from sqlalchemy import Connection, delete, func, select, update

from openforge.pool import schema
from openforge.pool.records import Checkpoint, Place, Recovery, UnfinishedUnit, UnitState
from openforge.types import Outcome


def recover(connection: Connection, lost: Collection[int]) -> Recovery:
    """Cancel rollouts of the dead process, finish units it had no time to finish, and say what is left to do. Doing it twice is harmless.

    A place of a unit is done when an attempt at it ended in any outcome but `cancelled`: only what the crash (or a stop) cut off
    runs again.
    """
    now = time.time()
    _forget_checkpoints(connection, lost)
    rollouts, units = schema.rollouts.c, schema.units.c
    cancelled = connection.execute(select(rollouts.id).where(rollouts.outcome.is_(None)).order_by(rollouts.started_at)).scalars().all()
    connection.execute(
        update(schema.rollouts)
        .where(rollouts.outcome.is_(None))
        .values(outcome=Outcome.CANCELLED, ended_at=now, detail="the process died before this rollout ended")
    )

    running = connection.execute(select(schema.units).where(units.state == UnitState.RUNNING).order_by(units.unit)).mappings().all()
    attempts: dict[tuple[int, int], int] = defaultdict(int)
    done: set[tuple[int, int]] = set()
    tried = select(rollouts.unit, rollouts.place, rollouts.attempt, rollouts.outcome)
    for unit, place, attempt, outcome in connection.execute(tried.where(rollouts.unit.in_([row["unit"] for row in running]))):
        attempts[unit, place] = max(attempts[unit, place], attempt + 1)
        if outcome != Outcome.CANCELLED:
            done.add((unit, place))

    unfinished = []
    for row in running:
        unit, size = row["unit"], row["group_size"]
        missing = tuple(Place(index=i, attempt=attempts[unit, i]) for i in range(size) if (unit, i) not in done)
        if missing:
            unfinished.append(UnfinishedUnit(unit=unit, task_id=row["task_id"], group_size=size, missing=missing))
        else:
            connection.execute(update(schema.units).where(units.unit == unit).values(state=UnitState.FINISHED, finished_at=now))

    finished = select(units.unit).where(units.state == UnitState.FINISHED).order_by(units.finished_at, units.unit)
    checkpoint = connection.execute(select(schema.checkpoints).order_by(schema.checkpoints.c.step.desc()).limit(1)).mappings().first()
    return Recovery(
        checkpoint=Checkpoint(**checkpoint) if checkpoint else None,
        next_unit=connection.execute(select(func.coalesce(func.max(units.unit), -1))).scalar_one() + 1,
        finished=tuple(connection.execute(finished).scalars()),
        running=tuple(unfinished),
        cancelled=tuple(cancelled),
    )


def _forget_checkpoints(connection: Connection, lost: Collection[int]) -> None:
    """Steps that only a lost checkpoint contained are undone: their units wait for the trainer again."""
    connection.execute(delete(schema.checkpoints).where(schema.checkpoints.c.step.in_(list(lost))))
    newest = connection.execute(select(func.coalesce(func.max(schema.checkpoints.c.step), 0))).scalar_one()
    units = schema.units.c
    undone = (units.state == UnitState.TRAINED) & (units.step > newest)
    connection.execute(update(schema.units).where(undone).values(state=UnitState.FINISHED, step=None))
