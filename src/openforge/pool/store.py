"""The data pool's memory: calls, rollouts, units and checkpoints, durable when their await returns.

Invariant: no finished call is lost and no unit is trained twice, whatever kills the process. Writes are async, one at a time, and hold
nobody up (`writer.py`); reads are plain methods, for any thread and for the command line.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, Engine, Table, func, select, update

from openforge.pool import schema
from openforge.pool.codec import rollout_end, rollout_row, row_call, row_rollout, unpack_ints
from openforge.pool.database import clear_errors, connect, insert_once
from openforge.pool.records import Checkpoint, Counts, Recovery, Unit, UnitState
from openforge.pool.recovery import recover
from openforge.pool.writer import Writer
from openforge.types import Call, Outcome, Rollout, Task


class Store:
    """A run's database. Implements `types.CallLog`. Every method raises `StoreError` when the database fails."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine = engine
        self._path = path
        self._writer = Writer(engine, path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the database file, or make a new one."""
        return cls(connect(path), path)

    def close(self) -> None:
        """Commit what was asked for, then let go of the file."""
        self._writer.close()
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def commits(self) -> int:
        """Transactions written by this process."""
        return self._writer.commits

    # --- writes -----------------------------------------------------------------------------------------------------------------------

    async def append(self, call: Call) -> None:
        """Return only when the call is durable. Appending the same id again is a no-op."""
        await self._writer.append(call)

    async def put_tasks(self, tasks: Sequence[Task]) -> None:
        """Keep the tasks' texts with the run; a task that is there already stays as it is."""
        rows = [{"id": task.id, "instruction": task.instruction, "domain": task.domain, "data": task.data} for task in tasks]
        if rows:
            await self._writer.do(_insert(schema.tasks, rows))

    async def start_rollout(self, rollout: Rollout) -> None:
        """Idempotent on the rollout's id."""
        assert rollout.outcome is None, f"rollout {rollout.id} starts with an outcome"
        await self._writer.do(_insert(schema.rollouts, [rollout_row(rollout)]))

    async def end_rollout(self, rollout: Rollout) -> None:
        """Set the outcome, the reward and the end of a started rollout, once: a second end changes nothing."""
        assert rollout.outcome is not None, f"rollout {rollout.id} ends without an outcome"
        assert rollout.ended_at is not None, f"rollout {rollout.id} ends without a time"
        assert rollout.reward is None or math.isfinite(rollout.reward.value), f"rollout {rollout.id}: the reward is not finite"
        table = schema.rollouts
        statement = update(table).where(table.c.id == rollout.id, table.c.outcome.is_(None)).values(rollout_end(rollout))

        def end(connection: Connection) -> None:
            if connection.execute(statement).rowcount == 0:
                known = connection.execute(select(table.c.id).where(table.c.id == rollout.id)).first()
                assert known, f"rollout {rollout.id} ends but was never started"

        await self._writer.do(end)

    async def start_unit(self, unit: int, task_id: str, group_size: int) -> None:
        """Idempotent on the unit's number."""
        row = {"unit": unit, "task_id": task_id, "group_size": group_size, "state": UnitState.RUNNING, "reason": ""}
        await self._writer.do(_insert(schema.units, [row]))

    async def finish_unit(self, unit: int) -> None:
        """All its rollouts ended: the trainer may have it. Idempotent."""
        await self._writer.do(_move(unit, {UnitState.RUNNING}, {"state": UnitState.FINISHED, "finished_at": time.time()}))

    async def evict_unit(self, unit: int, reason: str) -> None:
        """Give the unit up, with a reason. Idempotent; a trained unit cannot be evicted."""
        await self._writer.do(_move(unit, {UnitState.RUNNING, UnitState.FINISHED}, {"state": UnitState.EVICTED, "reason": reason}))

    async def commit_checkpoint(self, step: int, version: int, path: str, units_by_step: Mapping[int, Collection[int]]) -> None:
        """In one transaction: this checkpoint stands, and these units are trained. To be called once the checkpoint's files are complete.

        `units_by_step` names the units of every step since the checkpoint before, up to and including `step`. A unit that is not `finished`
        is an AssertionError, and nothing is written: training it (again) would be the bug this method exists for.
        """

        def commit(connection: Connection) -> None:
            row = {"step": step, "version": version, "path": path}
            connection.execute(schema.checkpoints.insert(), row)
            table = schema.units
            for number, units in units_by_step.items():
                assert number <= step, f"step {number} is not in the checkpoint of step {step}"
                wanted = table.c.unit.in_(list(units)) & (table.c.state == UnitState.FINISHED)
                changed = connection.execute(update(table).where(wanted).values(state=UnitState.TRAINED, step=number)).rowcount
                assert changed == len(units), (
                    f"step {number} trained units {sorted(units)}, of which {len(units) - changed} were not waiting"
                )

        await self._writer.do(commit)

    async def recover(self, lost: Collection[int] = ()) -> Recovery:
        """To be called once, before anything else, by the process that goes on with a run (new or not). See `recovery.py`.

        `lost`: steps of the newest checkpoints, whose files are no longer there.
        """
        return await self._writer.do(lambda connection: recover(connection, lost))

    # --- reads ------------------------------------------------------------------------------------------------------------------------

    def task(self, id: str) -> Task | None:
        with self._read() as connection:
            row = connection.execute(select(schema.tasks).where(schema.tasks.c.id == id)).mappings().first()
        return Task(**row) if row else None

    def rollouts(self, *, split: str | None = None, unit: int | None = None) -> list[Rollout]:
        """In the order they started; all attempts."""
        table = schema.rollouts
        query = select(table).order_by(table.c.started_at, table.c.unit, table.c.place, table.c.attempt)
        if split is not None:
            query = query.where(table.c.split == split)
        if unit is not None:
            query = query.where(table.c.unit == unit)
        with self._read() as connection:
            return [row_rollout(row) for row in connection.execute(query).mappings()]

    def rollout(self, id: str) -> Rollout | None:
        with self._read() as connection:
            row = connection.execute(select(schema.rollouts).where(schema.rollouts.c.id == id)).mappings().first()
        return row_rollout(row) if row else None

    def group(self, unit: int) -> list[Rollout]:
        """The rollouts that count for a unit: the last attempt at each place, in the order of the places."""
        last: dict[int, Rollout] = {}
        for rollout in self.rollouts(unit=unit):
            if rollout.index not in last or last[rollout.index].attempt < rollout.attempt:
                last[rollout.index] = rollout
        return [last[index] for index in sorted(last)]

    def calls(self, rollout_id: str) -> list[Call]:
        """In arrival order."""
        table = schema.calls
        query = select(table).where(table.c.rollout_id == rollout_id).order_by(table.c.arrival, table.c.id)
        with self._read() as connection:
            return [row_call(row) for row in connection.execute(query).mappings()]

    def calling_rollouts(self) -> list[str]:
        """The rollouts that have calls, in the order of their first ones."""
        table = schema.calls
        query = select(table.c.rollout_id).group_by(table.c.rollout_id).order_by(func.min(table.c.started_at), table.c.rollout_id)
        with self._read() as connection:
            return list(connection.execute(query).scalars())

    def find_calls(self, prefix: str) -> list[Call]:
        """The calls whose id begins so; at most two, for more than one is too many."""
        table = schema.calls
        query = select(table).where(table.c.id.startswith(prefix, autoescape=True)).limit(2)
        with self._read() as connection:
            return [row_call(row) for row in connection.execute(query).mappings()]

    def prompt_ids(self, call_id: str) -> list[int]:
        """The call's whole prompt, put together along its parents. KeyError when there is no such call."""
        return self._tokens(call_id)[0]

    def sequence(self, call_id: str) -> list[int]:
        """The call's whole prompt and what it sampled. KeyError when there is no such call."""
        prompt, sampled = self._tokens(call_id)
        return prompt + sampled

    def units(self, *, state: UnitState | None = None) -> list[Unit]:
        table = schema.units
        query = select(table.c.unit, table.c.task_id, table.c.group_size, table.c.state, table.c.step, table.c.reason).order_by(
            table.c.unit
        )
        if state is not None:
            query = query.where(table.c.state == state)
        with self._read() as connection:
            return [Unit(**{**row, "state": UnitState(row["state"])}) for row in connection.execute(query).mappings()]

    def steps(self) -> dict[int, list[int]]:
        """Step -> the units it trained, of all steps a checkpoint covers."""
        steps: dict[int, list[int]] = {}
        for unit in self.units(state=UnitState.TRAINED):
            assert unit.step is not None
            steps.setdefault(unit.step, []).append(unit.unit)
        return dict(sorted(steps.items()))

    def checkpoints(self) -> list[Checkpoint]:
        """By step."""
        with self._read() as connection:
            rows = connection.execute(select(schema.checkpoints).order_by(schema.checkpoints.c.step)).mappings()
            return [Checkpoint(**row) for row in rows]

    def newest_version(self) -> int:
        """The newest weight version that sampled any token on record; -1 where there is none."""
        with self._read() as connection:
            newest: int | None = connection.execute(select(func.max(schema.calls.c.newest_version))).scalar()
        return -1 if newest is None else newest

    def counts(self) -> Counts:
        calls, rollouts, units = schema.calls.c, schema.rollouts.c, schema.units.c
        totals = select(func.count(), func.coalesce(func.sum(calls.delta_tokens), 0), func.coalesce(func.sum(calls.sampled_tokens), 0))
        with self._read() as connection:
            count, delta, sampled = connection.execute(totals.select_from(schema.calls)).one()
            outcomes = connection.execute(select(rollouts.outcome, func.count()).group_by(rollouts.outcome)).all()
            states = connection.execute(select(units.state, func.count()).group_by(units.state)).all()
        return Counts(
            calls=count,
            delta_tokens=delta,
            sampled_tokens=sampled,
            rollouts={Outcome(outcome) if outcome else None: number for outcome, number in outcomes},
            units={UnitState(state): number for state, number in states},
        )

    def _tokens(self, call_id: str) -> tuple[list[int], list[int]]:
        table = schema.calls
        columns = (table.c.id, table.c.parent_id, table.c.shared, table.c.delta, table.c.sampled)
        line = select(*columns).where(table.c.id == call_id).cte(recursive=True)
        line = line.union_all(select(*columns).join(line, table.c.id == line.c.parent_id))
        with self._read() as connection:
            rows = {row["id"]: row for row in connection.execute(select(line)).mappings()}
        path = [rows[call_id]]
        while (parent := path[-1]["parent_id"]) is not None:
            path.append(rows[parent])
        tokens: list[int] = []
        for row in reversed(path):
            del tokens[row["shared"] :]
            tokens += unpack_ints(row["delta"])
            prompt = len(tokens)
            tokens += unpack_ints(row["sampled"])
        return tokens[:prompt], tokens[prompt:]

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with clear_errors(self._path), self._engine.connect() as connection:
            yield connection


def _insert(table: Table, rows: list[dict[str, Any]]) -> Callable[[Connection], None]:
    """The work of adding rows; those whose key is there already stay as they are."""

    def insert(connection: Connection) -> None:
        connection.execute(insert_once(table), rows)

    return insert


def _move(unit: int, sources: set[UnitState], values: dict[str, Any]) -> Callable[[Connection], None]:
    """The work of moving a unit out of one of the `sources`; done already is fine, anything else is a bug."""
    table = schema.units

    def move(connection: Connection) -> None:
        if connection.execute(update(table).where(table.c.unit == unit, table.c.state.in_(sources)).values(values)).rowcount == 0:
            state = connection.execute(select(table.c.state).where(table.c.unit == unit)).scalar()
            assert state == values["state"], f"unit {unit} cannot become {values['state']}: it is {state or 'unknown'}"

    return move
