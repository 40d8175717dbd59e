"""An upstream of Anthropic's Messages API, behind a client that speaks another dialect."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import openai
import pytest

from openforge.gateway import Gateway, listen
from openforge.gateway.dialects.base import ApiError
from openforge.gateway.turn import Message, Tool, ToolCall, Turn
from openforge.gateway.upstream import MessagesApi, UpstreamBackend
from openforge.gateway.upstream.base import Ask
from openforge.gateway.upstream.messages import DEFAULT_MAX_TOKENS, request_fields
from openforge.types import FinishReason, Sampling

ASK = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}]
START = {"input_tokens": 5, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 2, "output_tokens": 1}


class Upstream:
    """Plays blocks: `(start, deltas)` each."""

    def __init__(self) -> None:
        self.blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        self.stop: dict[str, Any] = {"stop_reason": "end_turn", "stop_sequence": None}
        self.status = 200
        self.error: dict[str, Any] | None = None
        self.bodies: list[dict[str, Any]] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(json.loads(request.content))
        if self.status != 200:
            return httpx.Response(self.status, json={"type": "error", "error": {"type": "x", "message": "not now"}})
        if request.url.path.endswith("count_tokens"):
            return httpx.Response(200, json={"input_tokens": 321})
        text = "".join(f"event: {row['type']}\ndata: {json.dumps(row)}\n\n" for row in self.rows())
        return httpx.Response(200, text=text, headers={"content-type": "text/event-stream"})

    def rows(self) -> list[dict[str, Any]]:
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [], "usage": START}
        rows: list[dict[str, Any]] = [{"type": "message_start", "message": {**head, "stop_reason": None, "stop_sequence": None}}]
        for index, (start, deltas) in enumerate(self.blocks):
            rows.append({"type": "content_block_start", "index": index, "content_block": start})
            rows += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            rows.append({"type": "content_block_stop", "index": index})
        if self.error is not None:
            return [*rows, {"type": "error", "error": self.error}]
        return [*rows, {"type": "message_delta", "delta": self.stop, "usage": {"output_tokens": 17}}, {"type": "message_stop"}]


def text(*pieces: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces]


def thinking(thought: str, signature: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    deltas = [{"type": "thinking_delta", "thinking": thought}, {"type": "signature_delta", "signature": signature}]
    return {"type": "thinking", "thinking": "", "signature": ""}, deltas


def tool_use(*pieces: str, id: str = "toolu_1", given: Any = None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    start = {"type": "tool_use", "id": id, "name": "add", "input": given or {}}
    return start, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]


@pytest.fixture
async def upstream(serve_script, memory_log) -> AsyncIterator[Any]:
    found: Any = Upstream()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serve_script(found.answer))
        found.api = MessagesApi(url, "sk-ant-secret", "claude-teacher")
        stack.push_async_callback(found.api.close)
        gateway = Gateway(UpstreamBackend(found.api), memory_log, model_name="teacher")
        address = await stack.enter_async_context(listen(gateway))
        access = gateway.open("r", sampling=None)
        found.log = memory_log
        found.client = await stack.enter_async_context(
            openai.AsyncOpenAI(base_url=address + access.path + "/v1", api_key=access.api_key, max_retries=0)
        )
        yield found


async def test_thoughts_text_and_calls_come_through(upstream):
    upstream.blocks = [thinking("hm", "sig"), text("a", "b"), tool_use('{"a"', ": 1}"), tool_use(id="toolu_2")]
    upstream.stop["stop_reason"] = "tool_use"
    reply = await upstream.client.chat.completions.create(model="m", messages=ASK, tools=TOOLS)
    message = reply.choices[0].message
    assert (message.reasoning_content, message.content, reply.choices[0].finish_reason) == ("hm", "ab", "tool_calls")
    # Arguments that never came are an empty object, for a client parses what it gets.
    assert [(call.id, call.function.arguments) for call in message.tool_calls] == [("toolu_1", '{"a": 1}'), ("toolu_2", "{}")]
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (27, 17)
    assert reply.usage.prompt_tokens_details.cached_tokens == 20
    (call,) = upstream.log.calls
    assert call.upstream == {
        "model": "claude",
        "finish": "tool_use",
        "usage": {"prompt_tokens": 27, "cached_tokens": 20, "sampled_tokens": 17, "reasoning_tokens": 0},
    }
    assert (call.delta, call.sampled) == ([], [])
    body = upstream.bodies[0]
    assert (body["model"], body["stream"], body["max_tokens"]) == ("claude-teacher", True, DEFAULT_MAX_TOKENS)
    assert body["tools"] == [{"name": "add", "description": "Add.", "input_schema": {"type": "object"}}]


async def test_a_gateway_can_be_the_upstream(house, memory_log):
    house.say('<think>\nhm\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>')
    house.say("two")
    below = house.gateway.open("teacher", sampling=None)
    async with AsyncExitStack() as stack:
        api = MessagesApi(house.address + below.path, below.api_key, "teacher-model")
        stack.push_async_callback(api.close)
        gateway = Gateway(UpstreamBackend(api), memory_log, model_name="teacher")
        address = await stack.enter_async_context(listen(gateway))
        access = gateway.open("r", sampling=None)
        client = await stack.enter_async_context(openai.AsyncOpenAI(base_url=address + access.path + "/v1", api_key=access.api_key))
        first = await client.chat.completions.create(model="m", messages=ASK, tools=TOOLS, temperature=0.5)
        said = first.choices[0].message
        result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "1"}
        history = [*ASK, said.model_dump(exclude_none=True), result]
        second = await client.chat.completions.create(model="m", messages=history, tools=TOOLS)
    assert (said.reasoning_content, json.loads(said.tool_calls[0].function.arguments)) == ("hm", {"a": 1})
    assert second.choices[0].message.content == "two"
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (len(house.log.calls[0].delta), len(house.log.calls[0].sampled))
    assert house.engine.samplings[0].temperature == 0.5
    # Thought and all, the second prompt goes on literally behind the first reply.
    assert [(call.parent_id, call.fork) for call in house.log.calls] == [(None, None), (house.log.calls[0].id, None)]
    assert [(call.parent_id, call.fork) for call in memory_log.calls] == [(None, None), (memory_log.calls[0].id, None)]


async def test_arguments_that_come_with_the_start_are_kept(upstream):
    # litellm#25321
    upstream.blocks = [tool_use(given={"a": 1})]
    reply = await upstream.client.chat.completions.create(model="m", messages=ASK, tools=TOOLS)
    assert json.loads(reply.choices[0].message.tool_calls[0].function.arguments) == {"a": 1}


async def test_a_history_becomes_alternating_blocks_with_signed_thoughts(upstream):
    # anthropics/claude-code#20698, #63265: thinking comes first, unchanged, with its signature.
    upstream.blocks = [thinking("one", "s1"), thinking(" two", "s2"), text("so"), tool_use("{}", id="a"), tool_use("{}", id="b")]
    reply = await upstream.client.chat.completions.create(model="m", messages=ASK, tools=TOOLS)
    history = [
        {"role": "system", "content": "Be good."},
        *ASK,
        reply.choices[0].message.model_dump(exclude_none=True),
        {"role": "user", "content": "(note)"},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": ""},
        {"role": "system", "content": "Go on."},
        {"role": "assistant", "content": "x", "reasoning_content": "never signed"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": ""},
    ]
    await upstream.client.chat.completions.create(model="m", messages=history, tools=TOOLS)
    body = upstream.bodies[1]
    assert body["system"] == [{"type": "text", "text": "Be good."}]
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "one", "signature": "s1"},
                {"type": "thinking", "thinking": " two", "signature": "s2"},
                {"type": "text", "text": "so"},
                {"type": "tool_use", "id": "a", "name": "add", "input": {}},
                {"type": "tool_use", "id": "b", "name": "add", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "1"},
                {"type": "tool_result", "tool_use_id": "b", "content": ""},
                {"type": "text", "text": "(note)"},
                {"type": "text", "text": "Go on."},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "x"}]},
    ]


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("end_turn", "stop"), ("stop_sequence", "stop"), ("max_tokens", "length"), ("model_context_window_exceeded", "length")],
)
async def test_the_finish_is_the_apis(upstream, reason, finish):
    upstream.blocks, upstream.stop = [text("x")], {"stop_reason": reason, "stop_sequence": "END" if reason == "stop_sequence" else None}
    reply = await upstream.client.chat.completions.create(model="m", messages=ASK, max_tokens=3, stop="END")
    assert reply.choices[0].finish_reason == finish
    assert (upstream.bodies[0]["max_tokens"], upstream.bodies[0]["stop_sequences"]) == (3, ["END"])
    assert upstream.log.calls[0].upstream["finish"] == reason


@pytest.mark.parametrize(("status", "seen"), [(400, 400), (401, 502), (403, 502), (404, 502), (429, 429), (500, 500), (529, 529)])
async def test_an_error_has_the_clients_shape_and_the_upstreams_status(upstream, status, seen):
    upstream.status = status
    with pytest.raises(openai.APIStatusError) as failed:
        await upstream.client.chat.completions.create(model="m", messages=ASK)
    assert failed.value.status_code == seen
    assert ("not now" in failed.value.message) == (seen == status)
    assert len(upstream.bodies) == 1


async def test_a_redirect_is_not_followed_so_the_key_goes_nowhere_else(upstream, serve_script):
    async with serve_script(upstream.answer) as there:
        redirect = httpx.Response(307, headers={"location": f"{there}/v1/messages/count_tokens"})
        async with serve_script(lambda _: redirect) as url:
            api = MessagesApi(url, "sk-ant-secret", "m")
            with pytest.raises(ApiError, match="redirects") as failed:
                await api.count(Turn(messages=(Message("user", "hello"),)))
            await api.close()
    assert failed.value.status == 502
    assert not upstream.bodies


async def test_an_error_page_becomes_one_short_line(upstream, serve_script):
    page = "<html>\n<h1>Bad gateway</h1>\n" + "x" * 5000
    async with serve_script(lambda _: httpx.Response(502, text=page)) as url:
        api = MessagesApi(url, "k", "m")
        with pytest.raises(ApiError, match="<html> <h1>Bad gateway</h1> x") as failed:
            await api.count(Turn(messages=(Message("user", "hello"),)))
        await api.close()
    assert len(failed.value.message) < 600


async def test_an_error_event_in_the_stream_ends_the_reply(upstream):
    upstream.blocks, upstream.error = [text("half")], {"type": "overloaded_error", "message": "Overloaded"}
    with pytest.raises(openai.InternalServerError, match="Overloaded"):
        await upstream.client.chat.completions.create(model="m", messages=ASK)
    (call,) = upstream.log.calls
    assert (call.finish, call.response["content"]) == (FinishReason.ERROR, "half")


async def test_tokens_are_counted_by_the_api_that_can(upstream):
    turn = Turn(messages=(Message("user", "hello"),), tools=(Tool("add"),))
    assert await upstream.api.count(turn) == 321
    assert upstream.bodies[0].keys() == {"model", "messages", "tools"}
    upstream.status = 500
    with pytest.raises(ApiError) as failed:
        await upstream.api.count(turn)
    assert failed.value.status == 500


def ask(**options: Any) -> dict[str, Any]:
    turn = Turn(messages=(Message("user", "x"),), fields=options.pop("fields", {}))
    return request_fields(Ask(**{"turn": turn, "dialect": "messages", "sampling": Sampling(), "clients": True, **options}))


def test_parameters_are_those_the_api_has():
    fields = {"thinking": {"type": "enabled", "budget_tokens": 2}, "temperature": 0.5, "top_k": 3, "context_management": {}, "seed": 1}
    assert ask(fields=fields) == {"thinking": fields["thinking"], "temperature": 0.5, "top_k": 3}
    assert ask(fields=fields, dialect="chat") == {"temperature": 0.5, "top_k": 3}
    assert ask(fields={"generationConfig": {"topP": 0.5}}, dialect="gemini") == {"top_p": 0.5}
    assert ask(fields={"temperature": 0.5}, clients=False, sampling=Sampling(temperature=0.0, seed=3)) == {"temperature": 0.0}


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        *((text, {"arguments": text}) for text in ("[1]", "{", '{"a": "\\ud800"}', '{"a": 1e999}', '{"a":' * 20_000)),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_arguments_that_are_no_object_are_shown_as_text(upstream, arguments, sent):
    call = ToolCall("a", "add", arguments)
    await upstream.api.count(Turn(messages=(Message("user", "x"), Message("assistant", tool_calls=(call,)))))
    assert upstream.bodies[0]["messages"][1]["content"][0]["input"] == sent
