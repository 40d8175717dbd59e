"""The client of a vLLM server, against a server that speaks exactly vLLM's fields over real HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from openforge.engines.rollout import VllmEngine
from openforge.types import FinishReason, PromptTooLong, SampledToken, Sampling, UserError

MODEL = {"id": "tiny", "object": "model", "owned_by": "vllm", "max_model_len": 100}


@dataclass
class Server:
    """Plays chunks of `(ids, logprobs, finish)`; a string is sent as the data of an event."""

    chunks: list[Any] = field(default_factory=list)
    status: int = 200
    models: list[dict[str, Any]] = field(default_factory=lambda: [MODEL])
    hang: bool = False
    """Never end the stream after the chunks."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """The client has closed its connection before the end."""
    url: str = ""

    async def list_models(self, request: Request) -> Response:
        self.keys.append(request.headers.get("authorization"))
        return JSONResponse({"object": "list", "data": self.models})

    async def complete(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        if self.status != 200:
            return JSONResponse({"error": {"message": "no luck", "type": "BadRequestError", "code": self.status}}, self.status)
        return StreamingResponse(self.events(), media_type="text/event-stream")

    async def events(self) -> AsyncIterator[str]:
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "tiny"}
        try:
            for number, chunk in enumerate(self.chunks):
                if isinstance(chunk, str):
                    yield f"data: {chunk}\n\n"
                    continue
                ids, logprobs, finish = chunk
                choice = {
                    "index": 0,
                    "text": "",
                    "logprobs": {
                        "text_offset": [0] * len(ids),
                        "token_logprobs": logprobs,
                        "tokens": ["x"] * len(ids),
                        "top_logprobs": [{"x": value} for value in logprobs],
                    },
                    "finish_reason": finish,
                    "stop_reason": None,
                    "prompt_token_ids": self.bodies[-1]["prompt"] if number == 0 else None,
                    "token_ids": ids,
                }
                yield f"data: {json.dumps({**head, 'choices': [choice], 'usage': None})}\n\n"
            if self.hang:
                await asyncio.Event().wait()
            usage = {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 2}}
            yield f"data: {json.dumps({**head, 'choices': [], 'usage': usage})}\n\n"
            yield "data: [DONE]\n\n"
        except asyncio.CancelledError:
            self.left.set()
            raise


class Quiet(uvicorn.Server):
    def install_signal_handlers(self) -> None: ...


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    script = Server()
    app = Starlette(routes=[Route("/v1/models", script.list_models), Route("/v1/completions", script.complete, methods=["POST"])])
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    running = Quiet(uvicorn.Config(app, lifespan="off", log_level="critical", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(running.serve(sockets=[listener]))
    script.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    while not running.started:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    yield script
    running.should_exit = True
    await serving


@pytest.fixture
async def engine(server: Server) -> AsyncIterator[VllmEngine]:
    found = await VllmEngine.connect(server.url)
    yield found
    await found.close()


async def sample(engine: VllmEngine, sampling: Sampling = Sampling()) -> tuple[list[SampledToken], FinishReason | None]:  # noqa: B008
    tokens: list[SampledToken] = []
    finish = None
    async for chunk in engine.generate([1, 2, 3], sampling):
        assert finish is None, "a chunk after the last one"
        tokens += chunk.tokens
        finish = chunk.finish
    return tokens, finish


async def test_ids_and_logprobs_are_the_servers(server: Server, engine: VllmEngine) -> None:
    server.chunks = [([7], [-0.5], None), ([], [], None), ([8, 9], [-0.25, -1.0], None), ([], [], "stop")]
    tokens, finish = await sample(engine)
    assert tokens == [SampledToken(7, -0.5, 0), SampledToken(8, -0.25, 0), SampledToken(9, -1.0, 0)]
    assert finish is FinishReason.STOP
    assert engine.context_length == 100
    stats = engine.stats()
    assert (stats.version, stats.running, stats.prompt_tokens, stats.cached_tokens, stats.sampled_tokens) == (0, 0, 3, 2, 3)


async def test_the_prompt_goes_out_as_ids_and_every_setting_is_said(server: Server, engine: VllmEngine) -> None:
    server.chunks = [([7], [-0.5], "length")]
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, max_tokens=17, stop=("END",), stop_token_ids=(2,), seed=11)
    assert (await sample(engine, sampling))[1] is FinishReason.LENGTH
    (body,) = server.bodies
    assert body["prompt"] == [1, 2, 3]
    assert (body["model"], body["stream"], body["return_token_ids"], body["logprobs"]) == ("tiny", True, True, 0)
    asked = {key: body[key] for key in ("temperature", "top_p", "top_k", "min_p", "max_tokens", "stop", "stop_token_ids", "seed")}
    assert asked == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "max_tokens": 17,
        "stop": ["END"],
        "stop_token_ids": [2],
        "seed": 11,
    }
    # Defaults of the model's generation_config would change the distribution behind the log-probabilities.
    assert (body["repetition_penalty"], body["presence_penalty"], body["frequency_penalty"]) == (1.0, 0.0, 0.0)


async def test_leaving_the_stream_closes_the_servers(server: Server, engine: VllmEngine) -> None:
    server.chunks, server.hang = [([7], [-0.5], None)], True
    stream = engine.generate([1], Sampling())
    assert (await anext(stream)).tokens[0].id == 7
    assert engine.stats().running == 1
    await stream.aclose()
    await asyncio.wait_for(server.left.wait(), 5)
    assert engine.stats().running == 0


@pytest.mark.parametrize(
    ("chunk", "says"),
    [
        (([7, 8], [-0.5], None), "2 token ids"),
        (([7], [None], None), "log-probabilities"),
        (([7], [-0.5], "abort"), "'abort'"),
        (json.dumps({"error": {"message": "out of memory", "type": "InternalServerError", "code": 500}}), "out of memory"),
        (json.dumps({"choices": [{"index": 0, "text": "a", "logprobs": None, "finish_reason": None}]}), "return_token_ids"),
    ],
)
async def test_a_stream_that_is_not_exact_is_an_error(server: Server, engine: VllmEngine, chunk: Any, says: str) -> None:
    server.chunks = [chunk]
    with pytest.raises(RuntimeError, match=says):
        await sample(engine)


async def test_a_refusal_says_why(server: Server, engine: VllmEngine) -> None:
    server.status = 400
    with pytest.raises(RuntimeError, match="400: no luck"):
        await sample(engine)


async def test_a_prompt_beyond_the_context_is_not_sent(server: Server, engine: VllmEngine) -> None:
    with pytest.raises(PromptTooLong):
        await anext(engine.generate([1] * 100, Sampling()))
    assert not server.bodies


async def test_weights_stay_the_servers(engine: VllmEngine) -> None:
    for attempt in (engine.update_weights(1, {}), engine.pause(), engine.resume()):
        with pytest.raises(UserError, match="vLLM server"):
            await attempt


async def test_the_address_may_end_in_v1_and_the_key_is_sent(server: Server) -> None:
    found = await VllmEngine.connect(server.url + "/v1/", api_key="secret")
    await found.close()
    assert server.keys[-1] == "Bearer secret"


async def test_no_server_and_a_server_of_another_kind_are_users_mistakes(server: Server, unused_tcp_port: int) -> None:
    server.models = [{"id": "gpt"}]
    for url in (server.url, f"http://127.0.0.1:{unused_tcp_port}", "nonsense"):
        with pytest.raises(UserError, match="no vLLM server answers at"):
            await VllmEngine.connect(url)
