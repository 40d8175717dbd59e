"""The units that run: their rollouts side by side, for how long already, and what each of them waits for.

Invariant: a unit is over only when every rollout it started has its outcome on record, whether it ended by itself or was cancelled.
"""

from __future__ import annotations

import asyncio
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from openforge.run.rollouts import RolloutRunner
from openforge.types import Rollout, Sampling, Task


@dataclass(kw_only=True, slots=True)
class RunningUnit:
    number: int
    task: Task
    rollouts: dict[int, Rollout] = field(default_factory=dict)
    """By place; those that wait for a free agent are not there yet."""
    members: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    """By place."""
    since: float | None = None
    """When its first rollout started, by the monotonic clock."""

    @property
    def rewards(self) -> list[float]:
        """Of the rollouts that ended with one."""
        return [rollout.reward.value for rollout in self.rollouts.values() if rollout.reward is not None]


class Units:
    def __init__(self, runner: RolloutRunner, sampling: Sampling, seed: int, concurrency: int) -> None:
        """`sampling` is the run's, without a seed; at most `concurrency` agents run at once, first come, first served."""
        self.running: dict[int, RunningUnit] = {}
        self._runner, self._sampling, self._seed = runner, sampling, seed
        self._agents = asyncio.Semaphore(concurrency)

    async def run(self, number: int, task: Task, places: Mapping[int, int]) -> list[float]:
        """Run the rollouts of one unit; `places` maps each place to run to its attempt number. Returns the rewards, when all ended."""
        unit = self.running[number] = RunningUnit(number=number, task=task)
        async with asyncio.TaskGroup() as group:
            for index, attempt in places.items():
                unit.members[index] = group.create_task(self._rollout(unit, index, attempt))
        del self.running[number]
        return unit.rewards

    def cancel(self, number: int, reason: str) -> None:
        """End what still runs of the unit."""
        for member in self.running[number].members.values():
            member.cancel(reason)

    async def _rollout(self, unit: RunningUnit, index: int, attempt: int) -> None:
        async with self._agents:
            unit.since = unit.since or time.monotonic()
            rollout = Rollout(id=uuid.uuid4().hex, task_id=unit.task.id, unit=unit.number, index=index, attempt=attempt)
            unit.rollouts[index] = rollout
            unit.rollouts[index] = await self._runner.run(unit.task, rollout, self._seeded(unit.number, index))

    def _seeded(self, number: int, index: int) -> Sampling:
        """The run's sampling with a seed of its own for every place of every unit."""
        return replace(self._sampling, seed=zlib.crc32(f"{self._seed}/{number}/{index}".encode()))

    def describe(self) -> Iterator[str]:
        """One line a unit that runs, oldest first, and one a rollout of it that has not ended: what it waits for."""
        now = time.monotonic()
        for number, unit in sorted(self.running.items()):
            running = [index for index, member in unit.members.items() if not member.done()]
            ended = len(unit.members) - len(running)
            age = "has not started" if unit.since is None else f"runs for {now - unit.since:.0f} s"
            yield f"unit {number}, task {unit.task.id} ({unit.task.domain}): {age}; {ended} of {len(unit.members)} rollouts ended"
            for index in running:
                rollout = unit.rollouts.get(index)
                yield f"  rollout {index}: {'waits for a free agent (rollout.concurrency)' if rollout is None else self._waits(rollout)}"

    def _waits(self, rollout: Rollout) -> str:
        counts = self._runner.progress(rollout.id)
        if counts is None:
            return f"{rollout.id}: its reward is worked out, or its end is recorded"
        what = f"{counts['in_flight']} calls wait for the engine" if counts["in_flight"] else "its agent is at work between two calls"
        return f"{rollout.id}: {what}; {counts['calls']} calls made, {counts['sampled_tokens']} tokens sampled"


class Groups:
    """Which ended units may be trained: those whose group's statistics are known, because its rewards differ or all of it ended.

    A group is `size` units of consecutive numbers. Where the unit is the group (`size` 1), a unit may be trained when it ended.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._over: dict[int, int] = {}
        """Group → its units that ended or were lost; a group that is over altogether is not there."""
        self._rewards: dict[int, set[float]] = {}
        self._waiting: dict[int, list[int]] = {}

    def ended(self, unit: int, rewards: Callable[[], list[float]]) -> list[int]:
        """The units that may be trained now that this one ended, with these rewards."""
        group = unit // self.size
        self._waiting.setdefault(group, []).append(unit)
        if self.size > 1:
            self._rewards.setdefault(group, set()).update(rewards())
        return self._known(group)

    def lost(self, unit: int) -> list[int]:
        """The units that may be trained now that this one never will be."""
        return self._known(unit // self.size)

    def _known(self, group: int) -> list[int]:
        self._over[group] = self._over.get(group, 0) + 1
        complete = self._over[group] == self.size
        ready = self._waiting.pop(group, []) if complete or len(self._rewards.get(group, ())) > 1 else []
        if complete:
            del self._over[group]
            self._rewards.pop(group, None)
        return ready
