"""Servers on an engine that computes nothing, as processes: the gateway, and the bare server that streams the same bytes without one.

Invariant: a process speaks JSON lines. On start it prints the address of each pace; for a number read from standard input it opens so many
rollouts (and closes those of before) and prints their keys. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from openforge.bench.load import PACES, Pace
from openforge.gateway import EngineBackend, Gateway, listen
from openforge.gateway.formats import load_format
from openforge.pool import Store
from openforge.run.models import load_tokenizer
from openforge.types import EngineStats, FinishReason, GenerationChunk, SampledToken, Sampling, VersionPolicy, Weights

WORD = " hello"
"""One token in most vocabularies."""


class NullEngine:
    """Says one word again and again, at its pace, and then ends its turn."""

    def __init__(self, pace: Pace, word: int, end: int) -> None:
        self.context_length = 1 << 30
        self._pace = pace
        self._word = GenerationChunk(tokens=(SampledToken(word, -0.5, 0),))
        self._end = GenerationChunk(tokens=(SampledToken(end, -0.5, 0),), finish=FinishReason.STOP)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, version_policy: VersionPolicy = VersionPolicy.RECOMPUTE
    ) -> AsyncIterator[GenerationChunk]:
        async for _ in self._pace.beats():
            yield self._word
        yield self._end

    async def update_weights(self, version: int, weights: Weights) -> None: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    def stats(self) -> EngineStats:
        return EngineStats(version=0, running=0, waiting=0, prompt_tokens=0, cached_tokens=0, sampled_tokens=0)

    async def close(self) -> None: ...


async def _serve_gateway(model: Path) -> None:
    tokenizer = load_tokenizer(model)
    format = load_format("hermes", tokenizer)
    word = tokenizer(WORD, add_special_tokens=False)["input_ids"][0]
    async with AsyncExitStack() as stack:
        store = Store.open(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "calls.db")
        stack.callback(store.close)
        gateways, addresses = {}, {}
        for name, pace in PACES.items():
            engine = NullEngine(pace, word, format.stop_token_ids[0])
            gateways[name] = Gateway(EngineBackend(engine, format, tokenizer), store, model_name="null")
            addresses[name] = await stack.enter_async_context(listen(gateways[name])) + "/v1"
        _say(addresses)
        opened = 0
        while line := await asyncio.to_thread(sys.stdin.readline):
            for gateway in gateways.values():
                await gateway.close_all()
            wanted = json.loads(line)
            rollouts = [f"r{number}" for number in range(opened, opened + wanted)]
            opened += wanted
            _say({name: [gateway.open(id, sampling=Sampling()).api_key for id in rollouts] for name, gateway in gateways.items()})


async def _serve_bare() -> None:
    """Both paces on one port, by path; any key will do."""

    async def reply(request: Request) -> StreamingResponse:
        await request.body()
        return StreamingResponse(_stream(PACES[request.path_params["pace"]]), media_type="text/event-stream")

    # As the gateway does: else a full collection would count against the bare server.
    gc.collect()
    gc.freeze()
    app = Starlette(routes=[Route("/{pace:str}/v1/chat/completions", reply, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_level="error", timeout_keep_alive=3600))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 (uvicorn has no event for it)
        await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    _say({name: f"http://127.0.0.1:{port}/{quote(name)}/v1" for name in PACES})
    while line := await asyncio.to_thread(sys.stdin.readline):
        _say({name: ["sk-any"] * json.loads(line) for name in PACES})
    server.should_exit = True
    await serving


async def _stream(pace: Pace) -> AsyncIterator[bytes]:
    async for _ in pace.beats():
        yield _chunk({"content": WORD})
    yield _chunk({}, "stop") + b"data: [DONE]\n\n"


def _chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    row: dict[str, Any] = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 0, "model": "null", "choices": [choice]}
    return b"data: " + msgspec.json.encode(row) + b"\n\n"


def _say(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve_gateway(Path(sys.argv[1])) if len(sys.argv) > 1 else _serve_bare())
