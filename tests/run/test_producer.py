"""The producing half of a run with agents that end or hang on command: the head deadline, the mix, single rollouts as units, going on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from openforge.agents import Agent, AgentContext
from openforge.agents.settings import AgentSettings
from openforge.gateway import SessionSummary
from openforge.pool import Store, UnitState
from openforge.run import controller as controller_module
from openforge.run.batch import read_groups
from openforge.run.config import RunConfig
from openforge.run.controller import Controller
from openforge.run.producer import Producer, open_producer
from openforge.run.rollouts import RolloutRunner
from openforge.run.rundir import RunDir
from openforge.types import AgentResult, Outcome, Reward, Task, UserError

GROUP = 4


class Scripted(Agent):
    """Does what its task's script says for its place among the task's attempts: `hang`, or end with that reward; then, with 1."""

    store: Store

    async def agent_run(self, context: AgentContext) -> AgentResult:
        word = self._word(context)
        if word == "hang":
            await asyncio.Event().wait()
        return AgentResult(output=word)

    def _word(self, context: AgentContext) -> str:
        """By number, for attempts that are launched together start in any order."""
        rollout = self.store.rollout(context.rollout_id)
        assert rollout is not None
        units = [unit for unit in self.store.units() if unit.task_id == context.task.id and unit.unit <= rollout.unit]
        place = sum(unit.group_size for unit in units[:-1]) + (rollout.index if units[-1].group_size > 1 else 0)
        script = context.task.data.get("script", [])
        return script[place] if place < len(script) and not rollout.attempt else "1"

    async def calculate_reward(self, context: AgentContext, result: AgentResult) -> Reward:
        return Reward(value=float(result.output))


@dataclass
class Doorless:
    """A gateway that nobody calls."""

    context_length: int = 100
    fault: None = None
    rollouts: set[str] = field(default_factory=set)

    def open(self, rollout_id: str, **_: Any) -> Any:
        self.rollouts.add(rollout_id)
        return type("Access", (), {"path": "/r", "api_key": "k"})

    async def close(self, rollout_id: str) -> SessionSummary:
        self.rollouts.discard(rollout_id)
        return SessionSummary()

    def progress(self, rollout_id: str) -> dict[str, int]:
        if rollout_id not in self.rollouts:
            raise KeyError(rollout_id)
        return {"calls": 3, "in_flight": 0, "sampled_tokens": 40}


@dataclass
class World:
    """What a producer needs of a run, and the run's steps so far."""

    config: RunConfig
    services: Any
    tasks: Sequence[Task]

    @property
    def store(self) -> Store:
        store: Store = self.services.store
        return store

    @asynccontextmanager
    async def producing(self) -> AsyncIterator[Producer]:
        """While inside, units are launched and run."""
        producer = open_producer(self.config, self.services, self.tasks, await self.store.recover())
        running = asyncio.create_task(producer.run())
        try:
            await self.store.put_tasks(self.tasks)
            yield producer
        finally:
            running.cancel()
            await asyncio.wait([running])
            assert running.cancelled() or running.exception() is None

    async def step(self, producer: Producer) -> list[int]:
        async with asyncio.timeout(20):
            while (units := producer.take()) is None:
                await producer.progress()
        producer.published()
        return units


Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> Any:
    stores = []

    def make(tasks: Sequence[Task], *, groups_per_step: int = 1, weights: dict[str, float] | None = None, **schedule: Any) -> World:
        config = RunConfig.model_validate(
            {
                "name": "scripted",
                "model": {"path": "none"},
                "tasks": {"train": "none", "weights": weights or {}},
                "agent": {"class": "none:None"},
                "rollout": {"group_size": GROUP, "concurrency": 64},
                "train": {"groups_per_step": groups_per_step},
                "schedule": schedule,
            }
        )
        run_dir = RunDir.create(tmp_path / "run") if not (tmp_path / "run").exists() else RunDir(tmp_path / "run")
        store = Store.open(run_dir.database)
        stores.append(store)
        agent = Scripted(AgentSettings(command=["none"]), tmp_path)
        agent.store = store
        runner = RolloutRunner(
            agent=agent,
            reward=None,
            gateway=Doorless(),  # type: ignore[arg-type]
            address="",
            store=store,
            sandbox=None,  # type: ignore[arg-type]
            model_name="none",
            deadline=60.0,
            run_dir=run_dir,
            token_budget=None,
        )
        services = type("Services", (), {"store": store, "runner": runner})
        return World(config, services, tasks)

    yield make
    for store in stores:
        store.close()


def tasks_of(*scripts: list[str], domain: str = "default") -> list[Task]:
    """Taken in some order that the seed gives; tasks without a script follow for ever."""
    return [Task(id=f"{domain}-{i}", instruction="", domain=domain, data={"script": script}) for i, script in enumerate(scripts)]


def outcomes(world: World, unit: int) -> Counter[Outcome | None]:
    return Counter(rollout.outcome for rollout in world.store.group(unit))


async def test_a_head_that_hangs_is_cut_and_what_finished_is_trained(make: Make) -> None:
    world = make(tasks_of(["1", "hang", "0", "hang"]), policy="fifo", head_deadline=0.3)
    async with world.producing() as producer:
        assert await world.step(producer) == [0]
        assert await world.step(producer) == [1]
        row = producer.domains.row({})["default"]
        assert (row["overdue"], row["cut"], row["refill"]) == (1, 1, 0)
        assert producer.scheduler.snapshot().overdue == 1
    assert outcomes(world, 0) == {Outcome.FINISHED: 2, Outcome.CANCELLED: 2}
    (detail,) = {rollout.detail for rollout in world.store.group(0) if rollout.outcome == Outcome.CANCELLED}
    assert detail == "unit 0 ran past the head deadline of 0.3 s"


@pytest.mark.parametrize(("verdict", "script"), [("refill", ["1", "0", "1", "hang"]), ("cut", ["hang", "hang", "1", "hang"])])
async def test_a_dropped_head_is_made_up_for_by_its_domain(make: Make, verdict: str, script: list[str]) -> None:
    """Where too little finished to compare, a cut is a refill, too."""
    tasks = [*tasks_of(script, domain="a"), *tasks_of([], domain="b")]
    world = make(tasks, weights={"a": 1.0, "b": 1.0}, policy="fifo", head_deadline=0.3, on_deadline=verdict)
    async with world.producing() as producer:
        taken = [await world.step(producer) for _ in range(6)]
        assert taken == [[1], [2], [3], [4], [5], [6]], "numbering stays exact: the dropped unit's is skipped, no other moves"
        assert producer.domains.row({})["a"]["refill"] == 1
        assert producer.domains.evicted == {"a": 1}
        assert producer.domains.consumed == {"a": 3, "b": 3}
    (evicted,) = world.store.units(state=UnitState.EVICTED)
    assert (evicted.unit, evicted.task_id, evicted.reason) == (0, "a-0", "it ran past the head deadline")


async def test_a_head_that_is_waited_for_is_counted_once(make: Make) -> None:
    world = make(tasks_of(["hang"]), policy="windowed", window=2, max_staleness=3, head_deadline=0.1, on_deadline="wait")
    async with world.producing() as producer:
        assert await world.step(producer) == [1]
        await asyncio.sleep(0.5)
        assert producer.take() is None
        assert producer.scheduler.snapshot().overdue == 1
        assert producer.domains.row({})["default"]["overdue"] == 1


async def test_only_the_head_has_the_deadline(make: Make) -> None:
    """A younger unit that hangs is no one's business until it is the head."""
    tasks = [*tasks_of(["1", "1", "1", "1", "hang"])]
    world = make(tasks, policy="fifo", max_staleness=1, head_deadline=0.3)
    async with world.producing() as producer:
        assert await world.step(producer) == [0]
        assert producer.scheduler.snapshot().overdue == 0
        assert await world.step(producer) == [1]
        assert producer.scheduler.snapshot().overdue == 1


async def test_going_on_keeps_numbers_order_and_accounts(make: Make) -> None:
    tasks = [*tasks_of(["hang"], [], [], domain="a"), *tasks_of([], [], domain="b")]
    schedule: dict[str, Any] = {"policy": "fifo", "max_staleness": 2, "head_deadline": 0.2, "on_deadline": "refill"}
    world = make(tasks, weights={"a": 2.0, "b": 1.0}, **schedule)
    async with world.producing() as producer:
        steps = [await world.step(producer) for _ in range(7)]
        await world.store.commit_checkpoint(7, 7, "", dict(enumerate(steps, 1)))
        before = producer.domains, producer.scheduler.snapshot(), [next(producer.order).id for _ in range(9)]
    launched = {unit.unit for unit in world.store.units()}
    again = make(tasks, weights={"a": 2.0, "b": 1.0}, **schedule)
    producer = open_producer(again.config, again.services, tasks, await again.store.recover())
    assert producer.scheduler.head == before[1].head
    assert producer.scheduler.next_unit == before[1].next_unit == max(launched) + 1
    assert [next(producer.order).id for _ in range(9)] == before[2]
    assert producer.domains.consumed == before[0].consumed
    assert producer.domains.evicted == before[0].evicted == {"a": 1}


async def test_single_rollouts_are_taken_as_soon_as_their_rewards_differ(make: Make) -> None:
    world = make(tasks_of(["0", "1", "0", "hang"]), unit="rollout", window=0.5, max_staleness=2, head_deadline=0.5)
    async with world.producing() as producer:
        # A step is GROUP rollouts. Three of the first group go at once, the one that hangs is overtaken.
        assert await world.step(producer) == [0, 1, 2, 4]
        groups = read_groups(world.store, [0, 1, 2, 4], GROUP)
        assert [(group.group, group.rewards()) for group in groups] == [(0, [0]), (0, [1]), (0, [0]), (1, [1])]
        assert all(set(group.rewards() + group.others) == {0, 1} for group in groups[:3]), "taken before its group's rewards differed"
        assert groups[3].others == [1, 1, 1], "a group without a difference is compared as a whole"
        later = [unit for _ in range(4) for unit in await world.step(producer)]
        assert 3 not in later
        assert producer.scheduler.snapshot().overdue == 1
    (evicted,) = world.store.units(state=UnitState.EVICTED)
    assert evicted.unit == 3
    units = world.store.units()
    assert [unit.unit for unit in units] == list(range(len(units)))
    assert all(unit.group_size == 1 for unit in units)
    for group in range(len(units) // GROUP):
        assert len({unit.task_id for unit in units[group * GROUP : (group + 1) * GROUP]}) == 1


async def test_single_rollouts_of_one_reward_wait_for_their_group(make: Make) -> None:
    world = make(tasks_of(["1", "1", "1", "hang"]), unit="rollout", policy="windowed", window=1.0, max_staleness=3, head_deadline=0.3)
    async with world.producing() as producer:
        first = await world.step(producer)
        assert first == [4, 5, 6, 7], "the first group waits for its last rollout"
        assert {0, 1, 2} <= {unit for _ in range(3) for unit in await world.step(producer)}, "which was given up"


async def test_a_group_in_parts_goes_on_where_it_was(make: Make) -> None:
    world = make(tasks_of(["1", "1", "hang", "1"]), unit="rollout", max_staleness=1)
    async with world.producing() as producer:
        await asyncio.sleep(0.5)
        assert producer.scheduler.snapshot().finished == (4, 5, 6, 7)
        assert producer.scheduler.head == 0
    again = make(tasks_of([]), unit="rollout", max_staleness=1)
    async with again.producing() as producer:
        assert set(producer.scheduler.snapshot().running) == {0, 1, 2, 3}, "ended ones wait for the one that runs again"
        assert await again.step(producer) == [0, 1, 2, 3]
    assert outcomes(again, 2) == {Outcome.FINISHED: 1}


async def test_a_stall_is_described_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "STALL_SECONDS", 0.3)
    world = make(tasks_of(["1", "hang"], ["1", "hang"]), policy="fifo")
    told: list[str] = []
    async with world.producing() as producer:
        controller = _controller(world, producer, told.append)
        while sum(rollout.outcome is not None for rollout in world.store.rollouts()) < 3:  # noqa: ASYNC110 (no event for it)
            await asyncio.sleep(0.05)
        waiting = asyncio.create_task(controller._take(asyncio.get_running_loop().time()))
        await asyncio.sleep(1.0)
        controller.stop()
        assert await waiting is None
    (text,) = told
    assert text.startswith("the trainer waits for 1 units; 0 finished, 0 of them inside the window (W = 1), which begins at unit 0\n")
    assert "unit 0, task default-" in text
    assert "3 of 4 rollouts ended" in text
    assert "its agent is at work between two calls; 3 calls made, 40 tokens sampled" in text


def _controller(world: World, producer: Producer, told: Callable[[str], None] = lambda _: None) -> Controller:
    nothing: Any = None
    return Controller(
        config=world.config,
        services=world.services,
        trainer=nothing,
        checkpoints=nothing,
        producer=producer,
        report=nothing,
        after_step=nothing,
        stalled=told,
    )


async def test_a_run_whose_tasks_are_gone_is_not_gone_on_with(make: Make) -> None:
    world = make(tasks_of(["0", "1", "0", "1"]))
    async with world.producing() as producer:
        await world.step(producer)
    with pytest.raises(UserError, match=r"tasks\.train: task \S+ is on the run's record"):
        open_producer(world.config, world.services, [Task(id="other", instruction="")], await world.store.recover())
