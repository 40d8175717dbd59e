"""Puts a real agent on stage: the run's own rollout code, gateway, sandbox and call log around a scripted engine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import yaml
from hermes import Generated, Play, PlayingEngine
from transformers import PreTrainedTokenizerFast

from openforge.agents import load_agent
from openforge.coordinator import Delivery, Lineage, delivered, lineages, trajectories
from openforge.gateway import EngineBackend, Gateway, listen
from openforge.gateway.formats import load_format
from openforge.pool import Store
from openforge.rewards import load_reward
from openforge.run.config import RunConfig, load_config, save_resolved
from openforge.run.rollouts import RolloutRunner
from openforge.run.rundir import RunDir
from openforge.sandbox import ProcessSandbox
from openforge.types import Call, LineageKind, Rollout, Task

PROJECT = Path(__file__).parent / "project"
INSTRUCTION = "The test test_mean.py fails. Read mean.py, fix the bug in it, run the test with `python test_mean.py`, then stop."


@dataclass
class Performance:
    """What is left when the curtain falls."""

    rollout: Rollout
    calls: list[Call]
    lineages: list[Lineage]
    delivery: Delivery
    generated: list[Generated]
    """What the engine saw and sampled."""
    left_behind: list[Path]

    def chains(self, kind: LineageKind) -> list[list[Call]]:
        by_id = {call.id: call for call in self.calls}
        return [[by_id[id] for id in lineage.call_ids] for lineage in self.lineages if lineage.kind is kind]

    @property
    def forks(self) -> dict[str, int]:
        return dict(Counter(call.fork.value for call in self.calls if call.fork is not None))

    @property
    def kinds(self) -> dict[str, int]:
        return dict(Counter(lineage.kind.value for lineage in self.lineages))

    def prompt(self, call: Call) -> list[int]:
        """Put together from the log alone."""
        if call.parent_id is None:
            return call.delta
        parent = next(other for other in self.calls if other.id == call.parent_id)
        return (self.prompt(parent) + parent.sampled)[: call.shared] + call.delta


def check_ids(seen: Performance) -> None:
    """What the engine saw and sampled is what was recorded, each call once; all of it is trained, or masked with a reason."""
    recorded = sorted((seen.prompt(reply), reply.sampled) for reply in seen.calls)
    assert recorded == sorted((generated.prompt_ids, generated.sampled) for generated in seen.generated)
    assert seen.delivery.sampled == sum(len(generated.sampled) for generated in seen.generated)
    assert seen.delivery.sampled == seen.delivery.trained + sum(seen.delivery.masked.values())


async def perform(
    adapter: str,
    play: Callable[[Path], Play],
    *,
    run_dir: Path,
    scratch: Path,
    tokenizer: PreTrainedTokenizerFast,
    model: Path,
    context_length: int = 200_000,
    instruction: str = INSTRUCTION,
    **agent: object,
) -> Performance:
    """One rollout. `play` is told the workspace; `agent` are settings of the run file's section."""
    config = _config(adapter, agent, scratch, run_dir, model)
    run = RunDir.create(run_dir)
    save_resolved(config, run.config)
    rollout = Rollout(id=f"{adapter}-1", task_id="mean", unit=0, index=0)
    engine = PlayingEngine(tokenizer, play(run.workspaces / rollout.id), context_length)
    async with AsyncExitStack() as stack:
        store = stack.enter_context(Store.open(run.database))
        sandbox = ProcessSandbox()
        stack.push_async_callback(sandbox.close)
        product = load_agent(config.agent, config.base_dir)
        product.check()
        gateway = Gateway(EngineBackend(engine, load_format("hermes", tokenizer), tokenizer), store, model_name=config.name)
        address = await stack.enter_async_context(listen(gateway))
        assert config.reward is not None
        runner = RolloutRunner(
            agent=product,
            reward=load_reward(config.reward, config.base_dir, sandbox),
            gateway=gateway,
            address=address,
            store=store,
            sandbox=sandbox,
            model_name=config.name,
            deadline=config.agent.deadline,
            run_dir=run,
            token_budget=None,
        )
        ended = await runner.run(Task(id="mean", instruction=instruction), rollout, config.rollout.sampling)
        calls = store.calls(rollout.id)
    return Performance(
        rollout=ended,
        calls=calls,
        lineages=lineages(calls),
        delivery=delivered(trajectories(calls)),
        generated=engine.generated,
        left_behind=list(run.workspaces.iterdir()),
    )


def _config(adapter: str, agent: dict[str, object], scratch: Path, run_dir: Path, model: Path) -> RunConfig:
    (scratch / "tasks.jsonl").write_text(json.dumps({"id": "mean", "instruction": "fix it"}) + "\n")
    sections = {
        "name": "policy",
        "model": {"path": str(model), "format": "hermes"},
        "tasks": {"train": "tasks.jsonl"},
        "agent": {"adapter": adapter, "workspace": str(PROJECT), "deadline": "280s", **agent},
        "reward": {"command": ["sh", "-c", "python test_mean.py"]},
        "rollout": {"sampling": {"max_tokens": 4096}},
        "run_dir": str(run_dir),
    }
    path = scratch / "run.yaml"
    path.write_text(yaml.safe_dump(sections))
    return load_config(path)
