"""Chat Completions through real HTTP and the unmodified `openai` SDK."""

from __future__ import annotations

import json

from openforge.gateway.text import encode
from openforge.types import FinishReason

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
