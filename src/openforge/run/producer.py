"""The producing half of a run: launches units as the scheduler allows, runs them, and keeps the head to its deadline.

Invariant: every number launched comes to exactly one end, finished or evicted, and the scheduler, the pool, the order of tasks and the
ledger of domains all hear of it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from openforge.pool import Recovery, Scheduler, Store, UnfinishedUnit, UnitState
from openforge.run.config import RunConfig
from openforge.run.domains import Domains
from openforge.run.services import Services
from openforge.run.units import Groups, RunningUnit, Units
from openforge.tasks import TaskOrder
from openforge.types import Task, UserError


@dataclass(kw_only=True)
class Producer:
    config: RunConfig
    store: Store
    units: Units
    groups: Groups
    scheduler: Scheduler
    order: TaskOrder
    domains: Domains
    tasks: Mapping[str, Task]
    """By id."""
    unfinished: Sequence[UnfinishedUnit] = ()
    """What a crash interrupted."""
    current: Task | None = None
    """The task of the group whose units are being launched."""
    _dropped: set[int] = field(default_factory=set)
    """Units that are evicted and have not ended yet."""
    _progress: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever a unit was finished or a slot became free: whoever waits looks again."""

    async def run(self) -> None:
        """Launch units for ever. What a crash interrupted goes first, at its old place in the queue."""
        async with asyncio.TaskGroup() as units:
            for unit in self.unfinished:
                missing = {place.index: place.attempt for place in unit.missing}
                units.create_task(self._unit(unit.unit, self.tasks[unit.task_id], missing))
            if (deadline := self.config.schedule.head_deadline) is not None:
                units.create_task(self._keep(deadline))
            while True:
                while self.scheduler.may_launch():
                    await self._launch(units)
                await self.progress()

    async def progress(self) -> None:
        """Wait until something may have changed for whoever waits."""
        await self._progress.wait()
        self._progress.clear()

    def wake(self) -> None:
        self._progress.set()

    def take(self) -> list[int] | None:
        """The units of the next step, when the window lets enough through."""
        units = self.scheduler.take()
        if units is not None:
            self.domains.consume(units, self.scheduler.head)
        return units

    def published(self) -> None:
        """The step's weights are in the rollout engine: its slots are free."""
        self.scheduler.published()
        self.wake()

    def describe(self) -> str:
        """What a stalled run is diagnosed from."""
        now = self.scheduler.snapshot()
        lines = [
            f"the trainer waits for {self.scheduler.units_per_step} units; {len(now.finished)} finished, "
            f"{now.takeable} of them inside the window (W = {now.window}), which begins at unit {now.head}"
        ]
        return "\n".join([*lines, *self.units.describe()])

    async def _launch(self, units: asyncio.TaskGroup) -> None:
        number = self.scheduler.launch()
        if number % self.groups.size == 0 or self.current is None:
            self.current = next(self.order)
        task, places = self.current, self.config.rollout.group_size // self.groups.size
        self.domains.launch(number, task.domain)
        await self.store.start_unit(number, task.id, places)
        units.create_task(self._unit(number, task, dict.fromkeys(range(places), 0)))

    async def _unit(self, number: int, task: Task, places: Mapping[int, int]) -> None:
        """Run a unit to its end; `places` maps each place to run to its attempt number."""
        rewards = await self.units.run(number, task, places)
        if number in self._dropped:
            self._dropped.remove(number)
            await self.store.evict_unit(number, "it ran past the head deadline")
            ready = self.groups.lost(number)
        else:
            await self.store.finish_unit(number)
            ready = self.groups.ended(number, lambda: rewards)
        for unit in ready:
            self.scheduler.finish(unit)
        self.wake()

    # --- the head deadline ------------------------------------------------------------------------------------------------------------

    async def _keep(self, deadline: float) -> None:
        """Tell the scheduler when its head has run for `deadline` seconds, and do as it says.

        Units start in launch order, so no younger one is overdue while the head is not.
        """
        told: int | None = None
        while True:
            unit, left = self._head(), None
            if unit is not None and unit.number != told:
                left = deadline if unit.since is None else unit.since + deadline - time.monotonic()
                if left <= 0:
                    self._overdue(unit, deadline)
                    told = unit.number
                    continue
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self.progress()

    def _head(self) -> RunningUnit | None:
        """The unit that everything behind it may come to wait for: the scheduler's oldest, or the one whose reward its group lacks."""
        oldest = self.scheduler.oldest_running
        if oldest is None:
            return None
        behind = range(oldest, (oldest // self.groups.size + 1) * self.groups.size)
        return next((self.units.running[number] for number in behind if number in self.units.running and number not in self._dropped), None)

    def _overdue(self, unit: RunningUnit, deadline: float) -> None:
        number = unit.number
        verdict = self.scheduler.overdue(number, trainable=len(_rewards(self.store, number)) > 1)
        self.domains.overdue(number, verdict)
        if verdict == "refill":
            self._dropped.add(number)
            self.order.give_back(self.domains.evict(number, self.scheduler.next_unit), 1 / self.groups.size)
        if verdict != "wait":
            self.units.cancel(number, f"unit {number} ran past the head deadline of {deadline:g} s")
        self.wake()


def open_producer(config: RunConfig, services: Services, tasks: Sequence[Task], recovery: Recovery) -> Producer:
    """The producer as the pool's record has it: same numbers, same places in the queue, same order of tasks."""
    schedule, store = config.schedule, services.store
    groups = Groups(config.units_per_group)
    scheduler = schedule.scheduler(config.train.groups_per_step * groups.size)
    by_id = {task.id: task for task in tasks}
    units = store.units()
    if gone := [unit.task_id for unit in units if unit.task_id not in by_id]:
        raise UserError(f"tasks.train: task {gone[0]} is on the run's record but not in the file: put it back, or begin a new run")
    ready: set[int] = set()
    for unit in units:
        if unit.state == UnitState.EVICTED:
            ready.update(groups.lost(unit.unit))
        elif unit.state != UnitState.RUNNING:
            ready.update(groups.ended(unit.unit, lambda number=unit.unit: _rewards(store, number)))  # type: ignore[misc]
    finished = [unit for unit in recovery.finished if unit in ready]
    waiting = [unit for unit in recovery.finished if unit not in ready]
    scheduler.restore(recovery.next_unit, [*(unit.unit for unit in recovery.running), *waiting], finished)

    domain = {unit.unit: by_id[unit.task_id].domain for unit in units}
    taken = Counter(domain[unit.unit] for unit in units if unit.unit % groups.size == 0)
    evicted = Counter(domain[unit.unit] for unit in units if unit.state == UnitState.EVICTED)
    lost = {name: count / groups.size for name, count in evicted.items()}
    order = TaskOrder(tasks, config.seed, weights=config.tasks.weights, taken=taken, lost=lost)
    domains = Domains(order.shares, scheduler.window, per_group=groups.size)
    domains.restore(
        ((unit.unit, domain[unit.unit], unit.state == UnitState.TRAINED, unit.state == UnitState.EVICTED) for unit in units),
        recovery.next_unit,
    )
    return Producer(
        config=config,
        store=store,
        units=Units(services.runner, config.rollout.sampling, config.seed, config.rollout.concurrency),
        groups=groups,
        scheduler=scheduler,
        order=order,
        domains=domains,
        tasks=by_id,
        unfinished=recovery.running,
        current=by_id[units[-1].task_id] if recovery.next_unit % groups.size else None,
    )


def _rewards(store: Store, unit: int) -> list[float]:
    return [rollout.reward.value for rollout in store.group(unit) if rollout.reward is not None]
