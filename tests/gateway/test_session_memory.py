"""Ten thousand rollouts in a process of its own, over real HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from openforge.bench.gateway import NullServer, process
from openforge.bench.load import Conversation

MODEL = Path(__file__).parents[2] / "models" / "smollm2-135m-instruct"
BATCH = 500


async def use(server: NullServer) -> None:
    """Open a batch of rollouts (which finishes those of the batch before) and have a conversation in each."""
    keys = iter(server.keys(BATCH)["flat out"])

    async def worker() -> None:
        for key in keys:
            conversation = Conversation(server.urls["flat out"], key, f"{key}: What is the matter with " + "you " * 200)
            for _ in range(2):
                await conversation.call()
            conversation.close()

    await asyncio.gather(*(worker() for _ in range(16)))


@pytest.mark.slow
def test_memory_returns_after_ten_thousand_rollouts() -> None:
    with process("gateway", MODEL) as server:
        memory = psutil.Process(server.process.pid).memory_info
        for _ in range(2):
            asyncio.run(use(server))
        server.keys(0)
        before = memory().rss
        for _ in range(10_000 // BATCH):
            asyncio.run(use(server))
        server.keys(0)
        assert memory().rss < before * 1.1
