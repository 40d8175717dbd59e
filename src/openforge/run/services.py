"""What a run consists of, put together: store, rollout engine, gateway, agent, reward.

Invariant: everything opened here is closed in reverse order, so that no call is accepted whose record could no longer be written.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from openforge.agents import load_agent
from openforge.engines.rollout import TorchEngine
from openforge.gateway import EngineBackend, Gateway, listen
from openforge.gateway.formats import load_format
from openforge.pool import Store
from openforge.rewards import load_reward
from openforge.run.config import RunConfig
from openforge.run.models import load_tokenizer
from openforge.run.rollouts import RolloutRunner
from openforge.run.rundir import RunDir
from openforge.sandbox import ProcessSandbox
from openforge.types import RolloutEngine


@dataclass(frozen=True, kw_only=True)
class Services:
    store: Store
    engine: RolloutEngine
    gateway: Gateway
    runner: RolloutRunner


@asynccontextmanager
async def services(config: RunConfig, run_dir: RunDir, store: Store, model_dir: Path) -> AsyncIterator[Services]:
    """Open a run's services on the weights in `model_dir`; `store` stays its owner's to close."""
    async with AsyncExitStack() as stack:
        sandbox = ProcessSandbox(config.agent.preload)
        stack.push_async_callback(sandbox.close)
        agent = load_agent(config.agent, config.base_dir)
        agent.check()
        reward = load_reward(config.reward, config.base_dir, sandbox) if config.reward else None
        engine = TorchEngine(
            model_dir,
            dtype=config.rollout.dtype,
            max_batch=config.rollout.concurrency,
            kv_tokens=config.rollout.kv_tokens,
            threads=half_the_cores(),
        )
        stack.push_async_callback(engine.close)
        gateway = make_gateway(config, model_dir, engine, store)
        address = await stack.enter_async_context(listen(gateway, host=config.gateway.host, port=config.gateway.port))
        runner = RolloutRunner(
            agent=agent,
            reward=reward,
            gateway=gateway,
            address=address,
            store=store,
            sandbox=sandbox,
            model_name=config.name,
            deadline=config.agent.deadline,
            run_dir=run_dir,
            token_budget=config.rollout.token_budget,
        )
        yield Services(store=store, engine=engine, gateway=gateway, runner=runner)


def make_gateway(config: RunConfig, model_dir: Path, engine: RolloutEngine, store: Store) -> Gateway:
    tokenizer = load_tokenizer(model_dir)
    backend = EngineBackend(engine, load_format(config.model.format, tokenizer), tokenizer)
    return Gateway(backend, store, model_name=config.name)


def half_the_cores() -> int:
    """CPU threads of the rollout engine, and of the trainer: given all, each would wait at every barrier for a core the other holds."""
    return max(1, (os.cpu_count() or 1) // 2)
