"""Puts a real agent on stage: the run's own rollout code, gateway, sandbox and call log around a scripted engine."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import yaml
from hermes import Play, PlayingEngine, Prompt
from transformers import PreTrainedTokenizerFast

from openforge.agents import load_agent
from openforge.coordinator import Delivery, Lineage, delivered, lineages, trajectories
from openforge.gateway import EngineBackend, Gateway, listen
from openforge.gateway.formats import load_format
from openforge.pool import Store
from openforge.rewards import load_reward
from openforge.run.config import load_config, save_resolved
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
    prompts: list[Prompt]
    home_left: bool
    run_dir: RunDir

    def chain(self, kind: LineageKind) -> list[list[Call]]:
        by_id = {call.id: call for call in self.calls}
        return [[by_id[id] for id in lineage.call_ids] for lineage in self.lineages if lineage.kind is kind]

    @property
    def forks(self) -> dict[str, int]:
        return dict(Counter(call.fork.value for call in self.calls if call.fork is not None))

    @property
    def kinds(self) -> dict[str, int]:
        return dict(Counter(lineage.kind.value for lineage in self.lineages))


async def perform(
    adapter: str,
    play: Play,
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    model: Path,
    *,
    context_length: int = 200_000,
    **agent: object,
) -> Performance:
    """One rollout of the small task."""
    (folder / "tasks.jsonl").parent.mkdir(parents=True, exist_ok=True)
    (folder / "tasks.jsonl").write_text('{"id": "mean", "instruction": "fix it"}\n')
    config_file = folder / "run.yaml"
    config_file.write_text(
        yaml.safe_dump(
            {
                "name": "policy",
                "model": {"path": str(model), "format": "hermes"},
                "tasks": {"train": "tasks.jsonl"},
                "agent": {"adapter": adapter, "workspace": str(PROJECT), "deadline": "90s", **agent},
                "reward": {"command": ["sh", "-c", "python test_mean.py"]},
                "rollout": {"sampling": {"max_tokens": 4096}},
                "run_dir": "run",
            }
        )
    )
    config = load_config(config_file)
    run_dir = RunDir.create(config.run_dir)
    save_resolved(config, run_dir.config)
    engine = PlayingEngine(tokenizer, play, context_length)
    async with AsyncExitStack() as stack:
        store = stack.enter_context(Store.open(run_dir.database))
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
            run_dir=run_dir,
            token_budget=None,
        )
        rollout = Rollout(id=f"{adapter}-1", task_id="mean", unit=0, index=0)
        ended = await runner.run(Task(id="mean", instruction=INSTRUCTION), rollout, config.rollout.sampling)
        calls = store.calls(rollout.id)
    return Performance(
        rollout=ended,
        calls=calls,
        lineages=lineages(calls),
        delivery=delivered(trajectories(calls)),
        prompts=engine.prompts,
        home_left=any(run_dir.workspaces.iterdir()),
        run_dir=run_dir,
    )
