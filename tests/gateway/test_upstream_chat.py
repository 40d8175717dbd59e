"""An upstream of Chat Completions: end to end with a second gateway as the upstream, and against the streams of sloppier servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall

from openforge.coordinator import lineages
from openforge.gateway import Gateway, listen
from openforge.gateway.reply import Reply
from openforge.gateway.upstream import ChatApi, UpstreamBackend
from openforge.gateway.upstream.chat import ToolCalls
from openforge.types import FinishReason, Fork, Sampling

ASK = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "x"}}\n</tool_call>'


@dataclass
class Front:
    """A gateway whose upstream is another gateway, and a client on each side's rollout."""

    gateway: Gateway
    log: Any
    address: str
    stack: AsyncExitStack

    async def client(self, rollout: str = "front", **options: Any) -> openai.AsyncOpenAI:
        access = self.gateway.open(rollout, **{"sampling": None, **options})
        return await self.stack.enter_async_context(
            openai.AsyncOpenAI(base_url=self.address + access.path + "/v1", api_key=access.api_key, max_retries=0)
        )


@pytest.fixture
async def front(house, memory_log) -> AsyncIterator[Front]:
    access = house.gateway.open("teacher", sampling=None)
    async with upstream_gateway(house.address + access.path + "/v1", access.api_key, memory_log) as found:
        yield found


class upstream_gateway:
    def __init__(self, url: str, key: str, log: Any) -> None:
        self._api, self._log, self._stack = ChatApi(url, key, "teacher-model"), log, AsyncExitStack()

    async def __aenter__(self) -> Front:
        gateway = Gateway(UpstreamBackend(self._api), self._log, model_name="teacher")
        self._stack.push_async_callback(self._api.close)
        return Front(gateway, self._log, await self._stack.enter_async_context(listen(gateway)), self._stack)

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()


async def test_the_reply_comes_through_as_it_is_sampled(front, house):
    house.say("<think>\nhm\n</think>\n\nhello you", pause_at=None)
    client = await front.client()
    stream = await client.chat.completions.create(
        model="any", messages=ASK, stream=True, stream_options={"include_usage": True}, temperature=0.3
    )
    deltas = [chunk async for chunk in stream]
    pieces = [chunk.choices[0].delta for chunk in deltas if chunk.choices]
    assert "".join(getattr(piece, "reasoning_content", None) or "" for piece in pieces) == "hm"
    texts = [piece.content for piece in pieces if piece.content]
    assert len(texts) > 1, "it came in one piece"
    assert "".join(texts) == "hello you"
    (call,), (sampled,) = front.log.calls, house.log.calls
    assert deltas[-1].usage.completion_tokens == len(sampled.sampled)
    assert deltas[-1].usage.prompt_tokens == len(sampled.delta)
    # What the API told is recorded; what it did not tell, its ids, is not invented.
    assert call.upstream["usage"]["sampled_tokens"] == len(sampled.sampled)
    assert (call.upstream["model"], call.upstream["finish"]) == ("tiny", "stop")
    assert (call.delta, call.sampled, call.logprobs, call.versions) == ([], [], [], [])
    assert (call.shared, call.finish) == (0, FinishReason.STOP)
    assert call.response == {"role": "assistant", "content": "hello you", "reasoning": "hm"}
    assert call.first_token_at is not None


def kinds(calls):
    found = {id: lineage.kind for lineage in lineages(calls) for id in lineage.call_ids}
    return {call.index: found[call.id] for call in calls}


async def test_a_conversation_is_stored_as_parents_and_deltas(front, house):
    house.say(CALL)
    house.say("three")
    house.say("four")
    client = await front.client()
    reply = await client.chat.completions.create(model="m", messages=ASK, tools=TOOLS)
    (called,) = reply.choices[0].message.tool_calls
    assert json.loads(called.function.arguments) == {"a": 1, "b": "x"}
    assert reply.choices[0].finish_reason == "tool_calls"
    history = [*ASK, reply.choices[0].message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": called.id, "content": "3"}]
    for _ in range(2):
        await client.chat.completions.create(model="m", messages=history, tools=TOOLS)
        history = [*history, {"role": "user", "content": "again"}]
    one, two, edited = front.log.calls
    assert (one.parent_id, two.parent_id, edited.parent_id) == (None, one.id, two.id)
    assert (one.fork, two.fork, edited.fork) == (None, None, Fork.EDITED)
    assert (two.request["messages_shared"], [row["role"] for row in two.request["messages"]]) == (2, ["tool"])
    assert one.request["tools"] == [{"name": "add", "description": "Add.", "parameters": {"type": "object"}}]
    assert "tools" not in two.request
    # An edit goes on behind the posted messages, not behind the reply: that is still to be extended without a fork.
    house.say("five")
    said = {"role": "assistant", "content": "three"}
    await client.chat.completions.create(model="m", messages=[*history[:3], said, {"role": "user", "content": "go on"}], tools=TOOLS)
    assert (front.log.calls[3].parent_id, front.log.calls[3].fork) == (two.id, None)
    # Known by their messages, the calls have the lineages that they have by their tokens.
    assert kinds(front.log.calls) == kinds(house.log.calls)


async def test_the_clients_own_parameters_are_passed_on(front, house):
    client = await front.client()
    await client.chat.completions.create(
        model="m", messages=ASK, temperature=0.25, top_p=0.5, seed=3, max_tokens=9, stop=["END"], extra_body={"top_k": 7, "vendor": 1}
    )
    sampled = house.engine.samplings[0]
    assert (sampled.temperature, sampled.top_p, sampled.top_k, sampled.seed) == (0.25, 0.5, 7, 3)
    assert (sampled.max_tokens, sampled.stop) == (9, ("END",))
    assert house.log.calls[0].request["vendor"] == 1
    assert house.log.calls[0].request["model"] == "teacher-model"
    assert front.log.calls[0].request["model"] == "m"
    assert front.log.calls[0].sampling.temperature == 0.25


async def test_parameters_nobody_named_are_not_sent(front, house):
    await (await front.client()).chat.completions.create(model="m", messages=ASK)
    assert house.log.calls[0].request.keys() == {"model", "stream", "stream_options", "messages", "messages_shared"}


async def test_sampling_of_the_rollout_replaces_the_clients(front, house):
    client = await front.client(sampling=Sampling(temperature=1.0, max_tokens=40))
    await client.chat.completions.create(model="m", messages=ASK, temperature=0.1, top_p=0.2, max_tokens=11, frequency_penalty=1.5)
    request = house.log.calls[0].request
    assert (request["temperature"], request["max_tokens"]) == (1.0, 11)
    assert not request.keys() & {"top_p", "frequency_penalty"}


async def test_a_wrong_parameter_is_a_400_of_ours(front):
    client = await front.client()
    with pytest.raises(openai.BadRequestError, match="temperature"):
        await client.chat.completions.create(model="m", messages=ASK, extra_body={"temperature": "hot"})
    assert not front.log.calls


async def test_the_budget_counts_what_the_upstream_says(front, house):
    house.say("some words here")
    client = await front.client(token_budget=3)
    reply = await client.chat.completions.create(model="m", messages=ASK)
    assert (reply.choices[0].finish_reason, reply.usage.completion_tokens) == ("length", 3)
    with pytest.raises(openai.BadRequestError, match="budget"):
        await client.chat.completions.create(model="m", messages=ASK)
    assert (await front.gateway.close("front")).truncated


async def test_a_client_that_leaves_closes_the_upstreams_stream(front, house):
    house.say("hello you there", pause_at=2)
    client = await front.client()
    stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
    await asyncio.wait_for(house.engine.paused.wait(), 5)
    await anext(stream)
    await stream.close()
    for log in (front.log, house.log):
        while not log.calls:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert log.calls[0].finish is FinishReason.ABORTED
    assert house.engine.cancelled == 1
    assert house.log.calls[0].response["content"].startswith(front.log.calls[0].response["content"])


async def test_an_upstream_that_fails_midway_leaves_what_it_said(front, house):
    house.say("hello you", closed=False, error=RuntimeError("boom"))
    client = await front.client()
    stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
    with pytest.raises(openai.APIError, match="boom"):
        [chunk async for chunk in stream]
    (call,) = front.log.calls
    assert (call.finish, call.response["content"]) == (FinishReason.ERROR, "hello you")
    assert "boom" in call.error


async def test_a_key_the_upstream_refuses_is_no_401_of_the_client(house, memory_log):
    async with upstream_gateway(house.address + "/v1", "sk-wrong", memory_log) as front:
        client = await front.client()
        with pytest.raises(openai.InternalServerError) as refused:
            await client.chat.completions.create(model="m", messages=ASK)
    assert (refused.value.status_code, refused.value.code) == (502, "upstream_misconfigured")
    assert "sk-wrong" not in refused.value.message
    assert (memory_log.calls[0].finish, memory_log.calls[0].response["content"]) == (FinishReason.ERROR, "")


async def test_an_upstream_that_is_not_there_is_a_502(memory_log, unused_tcp_port):
    async with upstream_gateway(f"http://127.0.0.1:{unused_tcp_port}/v1", "k", memory_log) as front:
        client = await front.client()
        with pytest.raises(openai.InternalServerError) as missing:
            await client.chat.completions.create(model="m", messages=ASK)
    assert (missing.value.status_code, missing.value.code) == (502, "upstream_unreachable")


async def test_a_client_of_another_dialect_gets_its_own(front, house):
    house.say("<think>\nhm\n</think>\n\n" + CALL)
    access = front.gateway.open("messages", sampling=None)
    tool = {"name": "add", "description": "Add.", "input_schema": {"type": "object"}}
    own = {"temperature": 0.5, "top_k": 3}
    async with anthropic.AsyncAnthropic(base_url=front.address + access.path, api_key=access.api_key, max_retries=0) as client:
        async with client.messages.stream(model="m", max_tokens=99, messages=ASK, tools=[tool], extra_body=own) as stream:
            reply = await stream.get_final_message()
        await house.gateway.close("teacher")
        with pytest.raises(anthropic.InternalServerError) as refused:
            await client.messages.create(model="m", max_tokens=9, messages=ASK)
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.count_tokens(model="m", messages=ASK)
    assert [block.type for block in reply.content] == ["thinking", "tool_use"]
    assert (reply.content[1].input, reply.stop_reason) == ({"a": 1, "b": "x"}, "tool_use")
    assert reply.usage.output_tokens == len(house.log.calls[0].sampled)
    sampled = house.engine.samplings[0]
    assert (sampled.temperature, sampled.top_k, sampled.max_tokens) == (0.5, 3, 99)
    assert (refused.value.status_code, refused.value.body["type"]) == (502, "error")
    assert [call.dialect for call in front.log.calls] == ["messages", "messages"]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/completions", "/v1/files"])
async def test_a_path_we_do_not_record_is_not_passed_on(scripted, path):
    # rLLM's gateway hands such requests to its engine unrecorded.
    script, front = scripted
    access = front.gateway.open("front", sampling=None)
    async with httpx.AsyncClient(base_url=front.address + access.path) as http:
        answer = await http.post(path, json={"model": "m", "input": "x"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
    assert not script.bodies


# --- servers that are not gateways ---------------------------------------------------------------------------------------------------


@dataclass
class Script:
    status: int = 200
    chunks: list[Any] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(json.loads(request.content))
        if self.status != 200:
            return httpx.Response(self.status, json={"error": {"message": "slow down", "type": "x", "code": None}})
        events = [f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n" for chunk in self.chunks]
        return httpx.Response(200, text="".join(events), headers={"content-type": "text/event-stream"})


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "t", "choices": [choice]}


@pytest.fixture
async def scripted(memory_log, serve_script) -> AsyncIterator[tuple[Script, Front]]:
    script = Script()
    async with serve_script(script.answer) as url, upstream_gateway(url + "/v1", "k", memory_log) as front:
        yield script, front


@pytest.mark.parametrize("status", [400, 409, 413, 422, 429, 500, 503, 529])
async def test_the_upstreams_status_reaches_the_client(scripted, status):
    script, front = scripted
    script.status = status
    client = await front.client()
    with pytest.raises(openai.APIStatusError, match="slow down") as failed:
        await client.chat.completions.create(model="m", messages=ASK)
    assert failed.value.status_code == status
    assert len(script.bodies) == 1, "the gateway must not retry: the client does"
    assert front.log.calls[0].finish is FinishReason.ERROR


async def test_a_stream_without_an_end_is_no_reply(scripted):
    script, front = scripted
    script.chunks = [chunk({"content": "half a"})]
    client = await front.client()
    with pytest.raises(openai.InternalServerError, match="ended before"):
        await client.chat.completions.create(model="m", messages=ASK)
    assert front.log.calls[0].response["content"] == "half a"


async def test_without_usage_none_is_recorded(scripted):
    script, front = scripted
    script.chunks = [chunk({"content": "hi"}), chunk({}, "stop"), "[DONE]"]
    client = await front.client()
    reply = await client.chat.completions.create(model="m", messages=ASK)
    assert reply.choices[0].message.content == "hi"
    assert front.log.calls[0].upstream == {"model": "t", "finish": "stop"}


async def test_an_empty_list_of_tool_calls_is_none_and_text_stays_text(scripted):
    # litellm#29286
    script, front = scripted
    script.chunks = [chunk({"content": "a", "tool_calls": []}), chunk({"content": "b", "tool_calls": []}), chunk({}, "stop")]
    reply = await (await front.client()).chat.completions.create(model="m", messages=ASK)
    assert (reply.choices[0].message.content, reply.choices[0].message.tool_calls) == ("ab", None)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_reasoning_is_read_under_both_names_and_goes_back(scripted, name):
    script, front = scripted
    script.chunks = [chunk({name: "th"}), chunk({name: "ink"}), chunk({"content": "hi"}), chunk({}, "stop")]
    client = await front.client()
    reply = await client.chat.completions.create(model="m", messages=ASK)
    assert front.log.calls[0].response["reasoning"] == "think"
    said = reply.choices[0].message.model_dump(exclude_none=True)
    await client.chat.completions.create(model="m", messages=[*ASK, said, *ASK])
    assert script.bodies[1]["messages"][1]["reasoning_content"] == "think"


@settings(max_examples=30, deadline=None)
@given(
    calls=st.lists(st.tuples(st.text("ab", min_size=1), st.lists(st.text('{"}', min_size=1), max_size=3)), max_size=4),
    style=st.sampled_from(["from 0", "from 1", "none", "all 0"]),
    repeat_id=st.booleans(),
)
def test_parallel_calls_stay_apart_however_they_are_indexed(calls, style, repeat_id):
    # litellm#5231, vllm#34322, ai-dynamo/dynamo PR#4723
    numbering, reply = ToolCalls(), Reply()
    for at, (name, pieces) in enumerate(calls):
        index = {"from 0": at, "from 1": at + 1, "none": None, "all 0": 0}[style]
        head = {"index": index, "id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": ""}}
        reply.add(numbering.add(ChoiceDeltaToolCall.construct(**head)))
        for piece in pieces:
            part = {"index": index, "id": f"call_{at}" if repeat_id else None, "function": {"arguments": piece}}
            reply.add(numbering.add(ChoiceDeltaToolCall.construct(**part)))
    reply.add(numbering.finish())
    made = reply.message().tool_calls
    assert [(call.id, call.name) for call in made] == [(f"call_{at}", name) for at, (name, _) in enumerate(calls)]
    assert [call.arguments for call in made] == ["".join(pieces) or "{}" for _, pieces in calls]


async def test_a_call_without_a_name_or_an_id_does_not_break_the_stream(scripted):
    # vllm PR#52418, #55284
    script, front = scripted
    script.chunks = [chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}), chunk({}, "tool_calls")]
    reply = await (await front.client()).chat.completions.create(model="m", messages=ASK, tools=TOOLS)
    (call,) = reply.choices[0].message.tool_calls
    assert (call.id.startswith("call_"), call.function.name, call.function.arguments) == (True, "", "{}")


NONSENSE = [
    "{oops",
    [1, 2],
    5,
    {"choices": 5},
    {"choices": ["x"]},
    chunk({"content": 5}),
    chunk({"content": [{"type": "text", "text": "hi"}]}),
    chunk({"content": "\ud83d"}),
    chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "add", "arguments": {"a": 1}}}]}),
    {"choices": [], "model": "\ud83d"},
    {"choices": [], "usage": {"prompt_tokens": "many", "completion_tokens": 1}},
]


@pytest.mark.parametrize("nonsense", NONSENSE, ids=str)
async def test_an_upstream_that_sends_nonsense_fails_its_call_and_no_other(scripted, nonsense):
    script, front = scripted
    script.chunks = [chunk({"content": "hi"}), nonsense, chunk({}, "stop"), "[DONE]"]
    client = await front.client()
    with pytest.raises(openai.APIStatusError, match="makes no sense") as failed:
        await client.chat.completions.create(model="m", messages=ASK)
    assert failed.value.status_code == 502
    assert front.log.calls[0].response["content"] == "hi"
    script.chunks = [chunk({"content": "well"}), chunk({}, "stop"), "[DONE]"]
    assert (await client.chat.completions.create(model="m", messages=ASK)).choices[0].message.content == "well"
