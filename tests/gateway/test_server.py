"""What goes wrong, and who is who: real HTTP, real uvicorn, the unmodified SDK."""

from __future__ import annotations

import asyncio
import json
import socket

import anthropic
import httpx
import openai
import pytest

from openforge.gateway import SessionSummary, listen
from openforge.gateway.recorder import Recorder
from openforge.gateway.splice import Plan
from openforge.types import FinishReason, PromptTooLong, Sampling, UserError

ASK = [{"role": "user", "content": "hello"}]


async def post(house, body, *, rollout="r1", key="any", content=None):
    async with httpx.AsyncClient() as client:
        return await client.post(
            f"{house.address}/r/{rollout}/v1/chat/completions",
            content=content if content is not None else json.dumps({"model": "m", "messages": ASK, **body}),
            headers={"authorization": f"Bearer {key}"},
        )


# --- requests -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"n": 2}, "'n' must be 1"),
        ({"messages": []}, "non-empty"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]}, "only text"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": ["hello"]}, "messages[0] must be an object"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [{}]}]}, "tool_calls"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stop": 7}, "stop"),
        ({"stream_options": "yes"}, "stream_options"),
    ],
)
async def test_bad_request_is_one_clear_400(house, body, says):
    await house.client()
    answer = await post(house, body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert says in error["message"]
    assert not house.log.calls


@pytest.mark.parametrize("content", [b"{", b"[]", b'"x"', b"", b"\xff", b"[" * 100_000])
async def test_body_that_is_no_json_object_is_a_400(house, content):
    await house.client()
    answer = await post(house, {}, content=content)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_content_parts_null_content_developer_role_and_unknown_fields_are_taken(house):
    client = await house.client()
    messages = [
        {"role": "developer", "content": "Be good."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "cache_control": {"type": "x"}},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": "c"},
    ]
    await client.chat.completions.create(model="m", messages=messages, top_p=0.5, extra_body={"unheard_of": [1]})
    [call] = house.log.calls
    prompt = house.engine.tokenizer.decode(call.delta, skip_special_tokens=False)
    assert prompt.startswith("<|im_start|>system\nBe good.<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n")
    assert call.request["messages"][1]["extra"] == {"cache_control": {"type": "x"}}
    assert (call.request["unheard_of"], call.request["top_p"], call.sampling.top_p) == ([1], 0.5, 1.0)


async def test_lone_surrogates_of_a_client_that_cut_an_emoji_become_replacement_characters(house):
    await house.client()
    answer = await post(house, {}, content=b'{"messages": [{"role": "user", "content": "a\\ud83d \\ud83d\\udc4b"}]}')
    assert answer.status_code == 200
    assert "a\ufffd 👋" in house.engine.tokenizer.decode(house.log.calls[0].delta)


async def test_the_clients_limits_shorten_and_never_lengthen(house):
    client = await house.client(sampling=Sampling(max_tokens=5, temperature=0.7, stop=("zzz",), seed=1))
    for asked in ({"max_tokens": 3}, {"max_completion_tokens": 100}, {"stop": "two", "temperature": 0}):
        house.say("one two three four five six seven")
        await client.chat.completions.create(model="m", messages=ASK, **asked)
    short, long, stopped = house.log.calls
    assert (len(short.sampled), short.finish) == (3, FinishReason.LENGTH)
    assert len(long.sampled) == 5
    assert stopped.sampling.stop == ("zzz", "two")
    assert stopped.sampling.temperature == 0.7
    assert house.engine.end in stopped.sampling.stop_token_ids
    assert len({call.sampling.seed for call in house.log.calls}) == 3


async def test_stop_string_is_trimmed_from_the_text_and_stays_in_the_tokens(house):
    client = await house.client(sampling=Sampling(max_tokens=100))
    for stream in (False, True):
        house.say("one two three")
        reply = await client.chat.completions.create(model="m", messages=ASK, stop=["two"], stream=stream)
        if stream:
            chunks = [chunk.choices[0] async for chunk in reply]
            text, finish = "".join(chunk.delta.content or "" for chunk in chunks), chunks[-1].finish_reason
        else:
            text, finish = reply.choices[0].message.content, reply.choices[0].finish_reason
        assert (text, finish) == ("one ", "stop")
    call = house.log.calls[0]
    assert house.engine.tokenizer.decode(call.sampled) == "one two"
    await client.chat.completions.create(model="m", messages=[*ASK, {"role": "assistant", "content": "one "}, *ASK])
    last = house.log.calls[-1]
    assert last.fork is None
    assert house.engine.prompts[-1][: last.shared][-len(call.sampled) :] == call.sampled


async def test_reply_cut_by_length_shows_a_half_tool_call_as_text_and_is_continued(house):
    client = await house.client(sampling=Sampling(max_tokens=12))
    house.say('<tool_call>\n{"name": "add", "arguments": {"a": 123456789}}\n</tool_call>')
    reply = (await client.chat.completions.create(model="m", messages=ASK)).choices[0]
    assert reply.finish_reason == "length"
    assert reply.message.content.startswith("<tool_call>")
    assert reply.message.tool_calls is None
    await client.chat.completions.create(model="m", messages=[*ASK, reply.message.model_dump(exclude_none=True), *ASK])
    assert house.log.calls[1].fork is None
    assert house.log.calls[1].delta[0] == house.engine.end


async def test_reasoning_is_split_off_and_survives_a_client_that_drops_it(house):
    client = await house.client()
    house.say("<think>\nhm\n</think>\n\nfour")
    reply = (await client.chat.completions.create(model="m", messages=ASK)).choices[0].message
    assert (reply.content, reply.reasoning_content) == ("four", "hm")
    await client.chat.completions.create(model="m", messages=[*ASK, {"role": "assistant", "content": "four"}, *ASK])
    assert house.log.calls[1].fork is None


# --- who is who ---------------------------------------------------------------------------------------------------------------------------


async def test_rollouts_are_told_apart_by_path_or_by_key(house):
    one = house.gateway.open("one", sampling=Sampling())
    two = house.gateway.open("two", sampling=Sampling())
    async with httpx.AsyncClient(base_url=house.address) as client:

        async def status(path: str, headers: dict[str, str]) -> int:
            return (await client.post(f"{path}/chat/completions", json={"messages": ASK}, headers=headers)).status_code

        assert await status("/v1", {"authorization": f"Bearer {two.api_key}"}) == 200
        assert await status("/v1", {"x-api-key": one.api_key}) == 200
        assert await status(one.path + "/v1", {"authorization": "Bearer sk-made-up"}) == 200
        assert await status(one.path + "/v1", {}) == 200
        assert await status(one.path + "/v1", {"authorization": f"Bearer {two.api_key}"}) == 403
        assert await status("/v1", {}) == 401
        assert await status("/r/three/v1", {}) == 404
    assert [call.rollout_id for call in house.log.calls] == ["two", "one", "one", "one"]


async def test_closed_rollout_answers_404(house):
    client = await house.client()
    await client.chat.completions.create(model="m", messages=ASK)
    summary = await house.gateway.close("r1")
    assert summary == SessionSummary(calls=1, sampled_tokens=len(house.log.calls[0].sampled), truncated=False)
    with pytest.raises(openai.NotFoundError, match="not open"):
        await client.chat.completions.create(model="m", messages=ASK)
    assert await house.gateway.close("r1") == SessionSummary()


async def test_models_and_health(house):
    client = await house.client()
    assert [model.id async for model in client.models.list()] == ["tiny"]
    async with httpx.AsyncClient(base_url=house.address) as http:
        assert (await http.get("/health")).json() == {"status": "ok", "open_rollouts": 1}
        assert (await http.get("/v1/models", headers={"authorization": f"Bearer {client.api_key}"})).status_code == 200
        unknown = await http.get("/v1/nothing")
        assert (unknown.status_code, unknown.json()["error"]["message"]) == (404, "Not Found: GET /v1/nothing")


async def test_port_in_use_is_a_user_error(house):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match=r"cannot listen on 127\.0\.0\.1:.*in use"):
            async with listen(house.gateway, port=taken.getsockname()[1]):
                pass


# --- failures -----------------------------------------------------------------------------------------------------------------------------


async def test_engine_error_is_recorded_and_answered_with_500(house):
    client = await house.client()
    house.say("one two", closed=False, error=RuntimeError("out of memory"))
    with pytest.raises(openai.InternalServerError, match="out of memory"):
        await client.chat.completions.create(model="m", messages=ASK)
    [call] = house.log.calls
    assert (call.finish, call.error) == (FinishReason.ERROR, "RuntimeError: out of memory")
    assert call.sampled
    assert house.gateway.fault is None


async def test_engine_error_before_the_first_token_of_a_stream_is_a_500(house):
    client = await house.client()
    house.say("", closed=False, error=RuntimeError("boom"))
    with pytest.raises(openai.InternalServerError, match="boom"):
        await client.chat.completions.create(model="m", messages=ASK, stream=True)


async def test_engine_error_within_a_stream_does_not_look_like_an_end(house):
    await house.client()
    house.say("one two", closed=False, error=RuntimeError("boom"))
    answer = await post(house, {"stream": True})
    assert b"[DONE]" not in answer.content
    assert b'"finish_reason":"' not in answer.content
    assert "boom" in json.loads(answer.content.strip().split(b"data: ")[-1])["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_reply_ends_only_after_its_record_is_durable(house, stream):
    await house.client()
    house.log.gate = asyncio.Event()
    request = asyncio.create_task(post(house, {"stream": stream}))
    await house.log.appending.wait()
    await asyncio.sleep(0.05)
    assert not request.done()
    house.log.gate.set()
    assert (await request).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_log_that_fails_is_a_fault_and_the_reply_is_not_completed(house, stream):
    await house.client()
    house.log.error = OSError("No space left on device")
    answer = await post(house, {"stream": stream})
    if stream:
        assert b"[DONE]" not in answer.content
        assert b"No space left" in answer.content
    else:
        assert answer.status_code == 503
    assert isinstance(house.gateway.fault, OSError)
    assert (await post(house, {})).status_code == 503
    async with httpx.AsyncClient(base_url=house.address) as http:
        assert (await http.get("/health")).status_code == 503


@pytest.mark.parametrize("stream", [False, True])
async def test_call_that_cannot_be_written_down_is_a_fault_and_leaves_nobody_waiting(house, monkeypatch, stream):
    await house.client()
    monkeypatch.setattr(Recorder, "_call", lambda *_: 1 // 0)
    answer = await post(house, {"stream": stream})
    assert b"[DONE]" not in answer.content
    assert b"could not be recorded" in answer.content
    assert isinstance(house.gateway.fault, ZeroDivisionError)
    assert house.gateway.in_flight == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_goes_away_aborts_its_call_and_what_was_sampled_is_recorded(house, stream):
    client = await house.client()
    house.say("one two three", pause_at=3)
    request = asyncio.create_task(client.chat.completions.create(model="m", messages=ASK, stream=stream))
    await house.engine.paused.wait()
    if stream:
        await (await request).close()
    else:
        request.cancel()
    [call] = await house.recorded(1)
    assert (call.finish, len(call.sampled), len(call.logprobs)) == (FinishReason.ABORTED, 3, 3)
    assert house.engine.cancelled == 1
    await client.chat.completions.create(model="m", messages=ASK)
    assert house.log.calls[1].fork == "retry"


async def test_closing_a_rollout_aborts_and_records_what_is_in_flight(house):
    client = await house.client()
    house.say("one two three", pause_at=2)
    request = asyncio.create_task(client.chat.completions.create(model="m", messages=ASK))
    await house.engine.paused.wait()
    summary = await house.gateway.close("r1")
    assert (summary.calls, summary.sampled_tokens) == (1, 2)
    assert house.log.calls[0].finish == FinishReason.ABORTED
    with pytest.raises(openai.InternalServerError, match="aborted"):
        await request


async def test_parallel_calls_of_one_rollout_do_not_mix(house):
    client = await house.client()
    for i in range(8):
        house.say(f"reply {i} " * 5)
    ask = [[{"role": "user", "content": f"question {i}"}] for i in range(8)]
    replies = await asyncio.gather(*(client.chat.completions.create(model="m", messages=messages) for messages in ask))
    by_id = {f"chatcmpl-{call.id}": call for call in house.log.calls}
    for messages, reply in zip(ask, replies, strict=True):
        call = by_id[reply.id]
        assert call.request["messages"][-1]["content"] == messages[0]["content"]
        assert call.response["content"] == reply.choices[0].message.content
    assert len(by_id) == 8


# --- room ---------------------------------------------------------------------------------------------------------------------------------


async def test_prompt_that_does_not_fit_is_a_400_and_truncates_the_rollout(make_house):
    async with make_house(context_length=30) as house:
        client = await house.client()
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "word " * 40}])
        assert caught.value.code == "context_length_exceeded"
        assert not house.log.calls
        assert (await house.gateway.close("r1")).truncated


async def test_engines_own_refusal_is_the_same_400(house):
    client = await house.client()
    house.engine.context_length = 1
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="m", messages=ASK)
    assert caught.value.code == "context_length_exceeded"
    assert issubclass(PromptTooLong, Exception)
    assert (await house.gateway.close("r1")).truncated


async def test_reply_is_cut_to_the_context_that_is_left(make_house):
    async with make_house(context_length=48) as house:
        client = await house.client()
        house.say("one two three four five six seven eight nine ten")
        reply = await client.chat.completions.create(model="m", messages=ASK)
        assert reply.choices[0].finish_reason == "length"
        assert reply.usage.total_tokens == 48
        assert (await house.gateway.close("r1")).truncated


async def test_token_budget_of_a_rollout_is_shared_by_its_calls(house):
    client = await house.client(token_budget=5)
    house.say("a")
    await client.chat.completions.create(model="m", messages=ASK)
    house.say("one two three four five")
    second = await client.chat.completions.create(model="m", messages=ASK)
    assert second.choices[0].finish_reason == "length"
    with pytest.raises(openai.BadRequestError, match="budget of 5"):
        await client.chat.completions.create(model="m", messages=ASK)
    assert await house.gateway.close("r1") == SessionSummary(calls=2, sampled_tokens=5, truncated=True)


async def test_reply_as_long_as_the_run_allows_does_not_truncate_the_rollout(house):
    client = await house.client(sampling=Sampling(max_tokens=2))
    house.say("one two three four")
    await client.chat.completions.create(model="m", messages=ASK)
    assert not (await house.gateway.close("r1")).truncated


async def test_rollout_closed_while_its_tokens_are_counted_gets_no_call_after_its_end(house, monkeypatch):
    counting, go_on = asyncio.Event(), asyncio.Event()

    async def tokenise(plan):
        counting.set()
        await go_on.wait()

    monkeypatch.setattr(Plan, "tokenise", tokenise)
    client = await house.anthropic()
    asked = asyncio.create_task(client.messages.count_tokens(model="m", messages=ASK))
    await counting.wait()
    await house.gateway.close("r1")
    go_on.set()
    with pytest.raises(anthropic.NotFoundError, match="is not open"):
        await asked
    assert not house.log.calls
