"""Chat Completions through real HTTP and the unmodified `openai` SDK."""

from __future__ import annotations

import asyncio
import json

import httpx
import openai
import pytest

from openforge.gateway.relay import Patience
from openforge.gateway.text import encode
from openforge.types import FinishReason, Sampling

ASK = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object"}}}]
TWO_CALLS = "Both." + "".join(f'\n<tool_call>\n{{"name": "add", "arguments": {{"a": {a}}}}}\n</tool_call>' for a in (1, 2))


async def test_plain_reply_is_recorded_before_it_is_answered(house):
    house.say("Hi there 👋🏽.")
    client = await house.client()
    reply = await client.chat.completions.create(model="whatever", messages=ASK, temperature=0.3, extra_body={"foo": {"bar": 1}})
    assert reply.choices[0].message.content == "Hi there 👋🏽."
    assert reply.choices[0].finish_reason == "stop"
    assert reply.model == "tiny"
    [call] = house.log.calls
    assert call.sampled == [*encode(house.engine.tokenizer, "Hi there 👋🏽."), house.engine.end]
    assert call.versions == [7] * len(call.sampled)
    assert call.logprobs == [-i / 8 for i in range(len(call.sampled))]
    assert reply.usage.completion_tokens == len(call.sampled)
    assert reply.usage.prompt_tokens == len(call.delta)
    assert call.sampling.temperature == 1.0
    assert call.request["temperature"] == 0.3
    assert call.request["foo"] == {"bar": 1}
    assert call.finish == FinishReason.STOP


async def test_streamed_reply_comes_token_by_token(house):
    house.say("one two three", pause_at=4)
    client = await house.client()
    stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
    chunks = []
    async for chunk in stream:
        chunks.append(chunk.choices[0].delta.content)
        if len(chunks) == 4:
            break  # the engine still waits: these pieces came while the reply was being sampled
    assert chunks[0] == ""
    assert "one two three".startswith("".join(chunks))
    assert not house.log.calls


async def test_streamed_parallel_tool_calls_carry_id_name_and_distinct_indices(house):
    house.say(TWO_CALLS)
    client = await house.client()
    stream = await client.chat.completions.create(model="m", messages=ASK, tools=TOOLS, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    deltas = [delta for chunk in chunks if chunk.choices for delta in chunk.choices[0].delta.tool_calls or []]
    assert [(d.index, d.function.name, json.loads(d.function.arguments)) for d in deltas] == [(0, "add", {"a": 1}), (1, "add", {"a": 2})]
    assert len({d.id for d in deltas}) == 2
    assert all(d.id and d.type == "function" for d in deltas)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Both."
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(house.log.calls[0].sampled)
    assert [call["id"] for call in house.log.calls[0].response["tool_calls"]] == [d.id for d in deltas]


async def test_tool_loop_continues_its_own_tokens(house):
    client = await house.client()
    house.say(TWO_CALLS)
    messages = [*ASK]
    first = (await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)).choices[0]
    assert first.finish_reason == "tool_calls"
    messages.append(first.message.model_dump(exclude_none=True))
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in first.message.tool_calls]
    await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
    one, two = house.log.calls
    assert (two.parent_id, two.fork) == (one.id, None)
    assert two.shared == len(one.delta) + len(one.sampled)
    assert house.engine.prompts[1] == one.delta + one.sampled + two.delta
    delta = house.engine.tokenizer.decode(two.delta, skip_special_tokens=False)
    assert delta == "\n<|im_start|>user\n" + "\n".join(["<tool_response>\n3\n</tool_response>"] * 2) + "<|im_end|>\n<|im_start|>assistant\n"
    assert two.request["messages_shared"] == 2
    assert [m["role"] for m in two.request["messages"]] == ["tool", "tool"]
    assert "tools" in one.request
    assert "tools" not in two.request


# --- known troubles of other gateways -----------------------------------------------------------------------------------------------------


async def collect(client, **options):
    """Text, reasoning, tool-call deltas and the last finish reason of a streamed reply."""
    stream = await client.chat.completions.create(model="m", messages=ASK, tools=TOOLS, stream=True, **options)
    choices = [chunk.choices[0] async for chunk in stream]
    text = "".join(choice.delta.content or "" for choice in choices)
    reasoning = "".join(getattr(choice.delta, "reasoning_content", None) or "" for choice in choices)
    return text, reasoning, [call for choice in choices for call in choice.delta.tool_calls or []], choices[-1].finish_reason


async def test_first_delta_of_a_tool_call_holds_index_id_and_name_and_the_reply_ends_with_tool_calls(house):
    """opencode#7185, #1122, #7486, #1034: otherwise clients show calls as text and run nothing."""
    house.say(TWO_CALLS)
    text, _, deltas, finish = await collect(await house.client())
    first = {delta.index: delta for delta in reversed(deltas)}
    assert all(delta.id and delta.function.name == "add" for delta in first.values())
    assert (text, finish) == ("Both.", "tool_calls")


async def test_parallel_calls_have_indices_of_their_own_in_order(house):
    """lobehub PR#11649, vllm#34322, #30439, #17614: otherwise clients add two calls up to one."""
    house.say("\n".join(f'<tool_call>\n{{"name": "add", "arguments": {{"a": {a}}}}}\n</tool_call>' for a in range(5)))
    _, _, deltas, _ = await collect(await house.client())
    arguments = {}
    for delta in deltas:
        arguments[delta.index] = arguments.get(delta.index, "") + delta.function.arguments
    assert [json.loads(arguments[index])["a"] for index in sorted(arguments)] == [0, 1, 2, 3, 4]


async def test_silent_stream_is_kept_alive_by_what_clients_pass_over_and_ends_with_a_terminal_chunk(make_house):
    """cline#5415: clients and proxies close a silent stream."""
    async with make_house(patience=Patience(ping=0.02)) as house:
        house.say("one two")
        house.log.gate = asyncio.Event()
        access = house.gateway.open("r1", sampling=Sampling())
        async with (
            httpx.AsyncClient(base_url=house.address) as http,
            http.stream("POST", f"{access.path}/v1/chat/completions", json={"messages": ASK, "stream": True}) as answer,
        ):
            pings, lines = 0, []
            async for line in answer.aiter_lines():
                lines += [line.removeprefix("data: ")] if line.startswith("data: ") else []
                pings += line.startswith(":")
                if pings == 3:
                    house.log.gate.set()
        assert pings >= 3
        assert lines[-1] == "[DONE]"
        assert json.loads(lines[-2])["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_is_never_in_the_text_also_before_a_forced_call(house, stream):
    """sglang#22637, MiniMax-M2#14, qwen-code#3228; dynamo PR#11554: reasoning and a forced call come together."""
    house.say(f"<think>\nhm\n</think>\n\n{TWO_CALLS}")
    client = await house.client()
    if stream:
        text, reasoning, deltas, _ = await collect(client, tool_choice="required")
        names = [delta.function.name for delta in deltas]
    else:
        reply = await client.chat.completions.create(model="m", messages=ASK, tools=TOOLS, tool_choice="required")
        message = reply.choices[0].message
        text, reasoning, names = message.content, message.reasoning_content, [call.function.name for call in message.tool_calls]
    assert (text, reasoning, names) == ("Both.", "hm", ["add", "add"])


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "reasoning_text", None])
async def test_reasoning_comes_back_under_whichever_name_the_client_uses(house, field):
    """hermes-agent#75725, cline PR#7162: reasoning that is lost between the calls of one task makes the model worse."""
    client = await house.client()
    house.say(f"<think>\nhm\n</think>\n\n{TWO_CALLS}")
    reply = (await client.chat.completions.create(model="m", messages=ASK, tools=TOOLS)).choices[0].message
    echo = reply.model_dump(exclude_none=True)
    reasoning = echo.pop("reasoning_content")
    results = [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in reply.tool_calls]
    messages = [*ASK, {**echo, **({field: reasoning} if field else {})}, *results]
    await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
    assert house.log.calls[1].fork is None
    assert "<think>\nhm\n</think>" in house.engine.tokenizer.decode(house.engine.prompts[1], skip_special_tokens=False)


@pytest.mark.parametrize("reply", [TWO_CALLS, "plain text", ""])
async def test_every_sampled_token_of_a_streamed_reply_is_recorded_once(house, reply):
    """vllm#27482, agent-lightning#262, #308: ids lost behind tool parsers or proxies, and empty samples trained on silently."""
    house.say(reply)
    await collect(await house.client())
    [call] = house.log.calls
    assert call.sampled == [*encode(house.engine.tokenizer, reply), house.engine.end]
    assert len(call.logprobs) == len(call.versions) == len(call.sampled)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "unheard_of"])
@pytest.mark.parametrize("role", ["user", "tool"])
async def test_parts_that_are_not_text_are_refused_by_name(house, kind, role):
    client = await house.client()
    with pytest.raises(openai.BadRequestError, match=f"{kind}.*only text is"):
        await client.chat.completions.create(model="m", messages=[{"role": role, "content": [{"type": kind, kind: {}}]}])


async def test_tools_declared_the_old_way_are_refused_and_not_dropped(house):
    client = await house.client()
    with pytest.raises(openai.BadRequestError, match="declare them in 'tools'"):
        await client.chat.completions.create(model="m", messages=ASK, functions=[{"name": "add"}])
