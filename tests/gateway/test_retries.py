"""A client that asks again: served from the record, linked as a retry, or a sample of its own."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from openforge.gateway import SessionSummary, retries
from openforge.gateway.dialects.chat import Chat
from openforge.types import FinishReason, Fork

ASK = [{"role": "user", "content": "hello"}]
TEXT = '<think>\nhm\n</think>\n\nSure.<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


async def ask(house, *, retry=0, stream=False, **body):
    async with httpx.AsyncClient() as client:
        return await client.post(
            f"{house.address}/r/r1/v1/chat/completions",
            json={"model": "m", "messages": ASK, "stream": stream, **body},
            headers={"x-stainless-retry-count": str(retry)},
        )


def heard(answer) -> tuple[str, object]:
    """Id and message of a reply, streamed or plain."""
    if "event-stream" not in answer.headers["content-type"]:
        body = answer.json()
        message = body["choices"][0]["message"]
        calls = [(call["id"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
        return body["id"], (message.get("reasoning_content"), message["content"] or "", calls)
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    parts = [part for delta in deltas for part in delta.get("tool_calls", [])]
    ids = [part["id"] for part in parts if "id" in part]
    arguments = ["".join(p["function"]["arguments"] for p in parts if p["index"] == i) for i in range(len(ids))]
    text = "".join(delta.get("content") or "" for delta in deltas)
    reasoning = "".join(delta.get("reasoning_content", "") for delta in deltas)
    return chunks[0]["id"], (reasoning or None, text, list(zip(ids, arguments, strict=True)))


@pytest.mark.parametrize("stream", [False, True])
async def test_an_identical_retry_gets_the_recorded_reply(house, stream):
    await house.client()
    house.say(TEXT)
    first = await ask(house, stream=stream)
    again = await ask(house, stream=stream, retry=1)
    assert heard(again) == heard(first)
    assert heard(first)[1][0] == "hm"
    [call] = house.log.calls
    assert len(house.engine.prompts) == 1
    assert await house.gateway.close("r1") == SessionSummary(calls=1, sampled_tokens=len(call.sampled))


async def test_a_plain_fallback_of_a_stream_gets_the_streamed_reply(house):
    """Claude Code asks without `stream` when a stream went bad."""
    await house.client()
    house.say(TEXT)
    first = await ask(house, stream=True, stream_options={"include_usage": True})
    again = await ask(house)
    assert heard(again) == heard(first)
    assert again.json()["usage"]["completion_tokens"] == len(house.log.calls[0].sampled)
    assert len(house.log.calls) == 1


@pytest.mark.parametrize(
    "change", [{"temperature": 0.5}, {"messages": [*ASK, *ASK]}, {"tools": [{"type": "function", "function": {"name": "f"}}]}]
)
async def test_a_retry_of_something_else_is_sampled(house, change):
    await house.client()
    await ask(house)
    await ask(house, retry=1, **change)
    assert len(house.log.calls) == 2


async def test_asking_the_same_twice_on_purpose_gives_two_samples(house):
    await house.client()
    for text in ("one", "two", "three"):
        house.say(text)
    answers = [await ask(house), await ask(house), await ask(house, retry=1)]
    assert [heard(answer)[1][1] for answer in answers] == ["one", "two", "three"]
    assert [call.fork for call in house.log.calls] == [None, Fork.RETRY, Fork.RETRY]


async def test_a_retry_of_a_failed_call_is_sampled_and_linked(house):
    await house.client()
    house.say("one two", closed=False, error=RuntimeError("boom"))
    assert (await ask(house)).status_code == 500
    assert heard(await ask(house, retry=1))[1][1] == "ok"
    assert [(call.finish, call.fork) for call in house.log.calls] == [(FinishReason.ERROR, None), (FinishReason.STOP, Fork.RETRY)]
    assert house.log.calls[1].speaker.retry == 1


async def test_a_retry_while_the_first_is_in_flight_is_sampled_and_linked(house):
    await house.client()
    house.say("one two three", pause_at=2)
    first = asyncio.create_task(ask(house, stream=True))
    await house.engine.paused.wait()
    assert heard(await ask(house, retry=1))[1][1] == "ok"
    first.cancel()
    calls = await house.recorded(2)
    assert sorted((call.finish, call.fork) for call in calls) == [(FinishReason.ABORTED, None), (FinishReason.STOP, Fork.RETRY)]
    answer = await ask(house, retry=2)
    assert heard(answer)[1][1] == "ok"
    assert len(house.log.calls) == 2


async def test_a_served_retry_uses_nothing_of_the_budget(house):
    await house.client(token_budget=2)
    house.say("a")
    first = await ask(house)
    assert heard(await ask(house, retry=1)) == heard(first)


async def test_only_the_latest_requests_are_remembered(house, monkeypatch):
    monkeypatch.setattr(retries, "KEPT", 2)
    await house.client()
    for temperature in (0.1, 0.2, 0.3):
        await ask(house, temperature=temperature)
    await ask(house, temperature=0.3, retry=1)
    assert len(house.log.calls) == 3
    await ask(house, temperature=0.1, retry=1)
    assert len(house.log.calls) == 4


# --- counting -----------------------------------------------------------------------------------------------------------------------------


class Counting(Chat):
    count_paths = ("/v1/count",)

    def count(self, tokens: int) -> dict[str, int]:
        return {"tokens": tokens}


async def test_counting_tokens_is_recorded_and_disturbs_nothing(monkeypatch, make_house):
    """claude-relay-service#731: clients count forty times at their start."""
    monkeypatch.setattr("openforge.gateway.routes.DIALECTS", (Counting(),))
    async with make_house() as house:
        await house.client()
        async with httpx.AsyncClient() as client:

            async def count(messages):
                answer = await client.post(f"{house.address}/r/r1/v1/count", json={"messages": messages})
                return answer.json()["tokens"]

            counted = await count(ASK)
            await ask(house)
            long = [*ASK, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "word " * 500}]
            assert await count(long) > counted + 500
            await ask(house, messages=[*long[:2], *ASK])
        first, one, second, two = house.log.calls
        assert counted == len(one.delta)
        assert (one.fork, two.fork, two.parent_id) == (None, None, one.id)
        for call, tokens in ((first, counted), (second, second.request["prompt_tokens"])):
            assert (call.speaker.purpose, call.delta, call.sampled, call.request) == ("count_tokens", [], [], {"prompt_tokens": tokens})
        assert (await house.gateway.close("r1")).calls == 2


async def test_a_count_that_cannot_be_recorded_is_a_503(monkeypatch, make_house):
    monkeypatch.setattr("openforge.gateway.routes.DIALECTS", (Counting(),))
    async with make_house() as house:
        await house.client()
        house.log.error = OSError("No space left on device")
        async with httpx.AsyncClient() as client:
            assert (await client.post(f"{house.address}/r/r1/v1/count", json={"messages": ASK})).status_code == 503
        assert isinstance(house.gateway.fault, OSError)
