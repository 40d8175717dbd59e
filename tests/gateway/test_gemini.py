"""Google's generateContent through real HTTP and the unmodified `google-genai` SDK."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import httpx
import pytest
from google import genai
from google.genai import errors, types

from openforge.gateway.dialects.gemini_schema import json_schema
from openforge.types import FinishReason, Sampling

ASK = "hello"
ADD = {"name": "add", "description": "adds", "parameters": {"type": "OBJECT", "properties": {"a": {"type": "INTEGER"}}}}
TOOLS = [{"functionDeclarations": [ADD]}]
CALL = '<tool_call>\n{{"name": "add", "arguments": {}}}\n</tool_call>'
TWO_CALLS = "<think>\nhm\n</think>\n\nBoth.\n" + "\n".join(CALL.format(json.dumps({"a": a})) for a in (1, 2))
THOUGHTS = {"thinkingConfig": {"includeThoughts": True}}
NO_RETRIES = types.HttpRetryOptions(attempts=1)


@asynccontextmanager
async def sdk(house, *, on_path=True, rollout="r1", sampling=None):
    """An unmodified client on a freshly opened rollout."""
    access = house.gateway.open(rollout, sampling=sampling or Sampling())
    base = house.address + (access.path if on_path else "")
    options = types.HttpOptions(base_url=base, retry_options=NO_RETRIES)
    async with genai.Client(api_key=access.api_key, http_options=options).aio as client:
        yield client


async def post(house, body, *, method="generateContent", model="m", query="", rollout="r1", version="v1beta"):
    if rollout == "r1" and not house.gateway._sessions:
        house.gateway.open("r1", sampling=Sampling())
    async with httpx.AsyncClient() as client:
        return await client.post(f"{house.address}/r/{rollout}/{version}/models/{model}:{method}{query}", json=body)


def user(*parts):
    return {"role": "user", "parts": [{"text": part} if isinstance(part, str) else part for part in parts]}


def prompt_of(house):
    return house.engine.tokenizer.decode(house.engine.prompts[-1], skip_special_tokens=False)


# --- replies ------------------------------------------------------------------------------------------------------------------------------


async def test_plain_reply_has_thought_text_and_call_parts_and_complete_usage(house):
    house.say(TWO_CALLS)
    answer = (await post(house, {"contents": [user(ASK)], "tools": TOOLS, "generationConfig": THOUGHTS})).json()
    [call] = house.log.calls
    [candidate] = answer["candidates"]
    ids = [each["id"] for each in call.response["tool_calls"]]
    assert candidate["content"] == {
        "role": "model",
        "parts": [
            {"text": "hm", "thought": True},
            {"text": "Both."},
            {"functionCall": {"id": ids[0], "name": "add", "args": {"a": 1}}},
            {"functionCall": {"id": ids[1], "name": "add", "args": {"a": 2}}},
        ],
    }
    assert (candidate["finishReason"], answer["modelVersion"], answer["responseId"]) == ("STOP", "tiny", call.id)
    usage = answer["usageMetadata"]
    assert usage["promptTokenCount"] == len(call.delta)
    assert usage["candidatesTokenCount"] + usage["thoughtsTokenCount"] == len(call.sampled)
    assert usage["thoughtsTokenCount"] > 0
    assert usage["totalTokenCount"] == len(call.delta) + len(call.sampled)


async def test_thoughts_are_shown_only_to_clients_that_ask(house):
    async with sdk(house) as client:
        for stream in (False, True):
            house.say("<think>\nhm\n</think>\n\nfour")
            if stream:
                replies = [chunk async for chunk in await client.models.generate_content_stream(model="m", contents=ASK)]
            else:
                replies = [await client.models.generate_content(model="m", contents=ASK)]
            parts = [part for reply in replies for part in reply.candidates[0].content.parts]
            assert not any(part.thought for part in parts)
            assert "".join(part.text for part in parts) == "four"
    assert [call.response["reasoning"] for call in house.log.calls] == ["hm", "hm"]


async def test_streamed_reply_comes_token_by_token(house):
    house.say("one two three", pause_at=4)
    async with sdk(house) as client:
        chunks = []
        async for chunk in await client.models.generate_content_stream(model="m", contents=ASK):
            chunks.append(chunk.text)
            assert chunk.candidates[0].finish_reason is None
            if len(chunks) == 3:
                break  # the engine still waits: these pieces came while the reply was being sampled
    assert "one two three".startswith("".join(chunks))
    assert not house.log.calls


async def test_reply_cut_by_the_limit_ends_with_max_tokens(house):
    async with sdk(house) as client:
        house.say("one two three four five six")
        reply = await client.models.generate_content(model="m", contents=ASK, config={"max_output_tokens": 3})
        assert reply.candidates[0].finish_reason == types.FinishReason.MAX_TOKENS
    assert (len(house.log.calls[0].sampled), house.log.calls[0].finish) == (3, FinishReason.LENGTH)


async def test_stop_sequences_are_obeyed_and_the_rest_is_recorded(house):
    async with sdk(house) as client:
        house.say("one two three")
        safety = types.SafetySetting(category="HARM_CATEGORY_HARASSMENT", threshold="BLOCK_NONE")
        config = types.GenerateContentConfig(stop_sequences=["two"], temperature=0.1, top_k=3, safety_settings=[safety])
        reply = await client.models.generate_content(model="m", contents=ASK, config=config)
        assert reply.text == "one "
    [call] = house.log.calls
    assert (call.sampling.stop, call.sampling.temperature, call.sampling.top_k) == (("two",), 1.0, 0)
    assert call.request["generationConfig"] == {"temperature": 0.1, "topK": 3, "stopSequences": ["two"]}
    assert call.request["safetySettings"] == [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]


async def test_empty_reply_still_has_a_part(house):
    async with sdk(house) as client:
        for stream in (False, True):
            house.say("")
            if stream:
                [reply] = [chunk async for chunk in await client.models.generate_content_stream(model="m", contents=ASK)]
            else:
                reply = await client.models.generate_content(model="m", contents=ASK)
            assert (reply.text, reply.candidates[0].finish_reason) == ("", types.FinishReason.STOP)


# --- conversations ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_loop_continues_its_own_tokens(house, stream):
    config = types.GenerateContentConfig(
        tools=TOOLS,
        system_instruction="Be good.",
        thinking_config=types.ThinkingConfig(include_thoughts=True),
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    async with sdk(house) as client:
        chat = client.chats.create(model="m", config=config)

        async def send(message):
            if not stream:
                return (await chat.send_message(message)).candidates[0].content.parts
            return [part async for chunk in await chat.send_message_stream(message) for part in chunk.candidates[0].content.parts]

        message = "add them"
        for text in (TWO_CALLS, TWO_CALLS, "Done."):
            house.say(text)
            calls = [part.function_call for part in await send(message) if part.function_call]
            message = [
                types.Part(function_response=types.FunctionResponse(id=call.id, name=call.name, response={"output": "3"})) for call in calls
            ]
        house.say("Welcome.")
        await send("thanks")
    calls = house.log.calls
    assert [call.fork for call in calls] == [None] * 4
    for before, prompt, call in zip(calls, house.engine.prompts[1:], calls[1:], strict=False):
        assert call.parent_id == before.id
        assert prompt[: call.shared] == house.engine.prompts[calls.index(before)] + before.sampled
    delta = house.engine.tokenizer.decode(calls[1].delta, skip_special_tokens=False)
    assert delta == "\n<|im_start|>user\n" + "\n".join(["<tool_response>\n3\n</tool_response>"] * 2) + "<|im_end|>\n<|im_start|>assistant\n"
    assert calls[1].request["messages"][0]["tool_call_id"] == calls[0].response["tool_calls"][0]["id"]


async def test_sdks_own_automatic_function_calling_continues_its_own_tokens(house):
    def add(a: int) -> int:
        """adds"""
        return a + 1

    async with sdk(house) as client:
        house.say(CALL.format('{"a": 1}'))
        house.say("two")
        reply = await client.models.generate_content(model="m", contents="add", config={"tools": [add]})
    assert reply.text == "two"
    assert [call.fork for call in house.log.calls] == [None, None]
    assert '<tool_response>\n{"result":2}\n</tool_response>' in prompt_of(house)


async def test_client_that_keeps_only_text_and_calls_continues_its_own_tokens(house):
    house.say(TWO_CALLS)
    first = (await post(house, {"contents": [user(ASK)], "tools": TOOLS, "generationConfig": THOUGHTS})).json()
    kept = [part for part in first["candidates"][0]["content"]["parts"] if not part.get("thought")]
    kept[1]["thoughtSignature"] = "c2ln"
    results = [{"functionResponse": {"name": "add", "response": {"output": {"sum": 3}}}} for _ in range(2)]
    await post(house, {"contents": [user(ASK), {"role": "model", "parts": kept}, user(*results)], "tools": TOOLS})
    one, two = house.log.calls
    assert (two.parent_id, two.fork) == (one.id, None)
    assert '<tool_response>\n{"sum":3}\n</tool_response>' in prompt_of(house)


async def test_snake_case_single_objects_and_text_beside_results_are_taken_in_place(house):
    body = {
        "system_instruction": {"parts": {"text": "Be good."}},
        "contents": [
            {"parts": {"text": "a"}},
            {
                "role": "model",
                "parts": [{"text": "hm", "thought": True}, {"text": "b", "thought_signature": "c2ln"}, {"function_call": {"name": "add"}}],
            },
            user({"function_response": {"name": "add", "response": {"error": "no"}}}, "hurry", "up"),
        ],
        "tools": {"function_declarations": [{"name": "add", "parameters_json_schema": {"type": "object"}}]},
        "generation_config": {"max_output_tokens": 7, "candidate_count": 1},
    }
    assert (await post(house, body)).status_code == 200
    [call] = house.log.calls
    prompt = house.engine.tokenizer.decode(call.delta, skip_special_tokens=False)
    assert prompt.startswith("<|im_start|>system\nBe good.")
    assert "<think>\nhm\n</think>\n\nb\n<tool_call>" in prompt
    assert '<tool_response>\n{"error":"no"}\n</tool_response><|im_end|>\n<|im_start|>user\nhurry\nup<|im_end|>' in prompt
    assert call.sampling.max_tokens == 7
    assert call.request["messages"][2]["extra"] == {"parts": [{"thoughtSignature": "c2ln"}]}


# --- tokens, names, keys ------------------------------------------------------------------------------------------------------------------


async def test_count_tokens_counts_the_rendered_prompt_with_system_and_tools(house):
    request = {"contents": [user(ASK)], "systemInstruction": user("Be good."), "tools": TOOLS}
    counted = await post(house, {"generateContentRequest": {"model": "models/m", **request}}, method="countTokens")
    await post(house, request)
    assert counted.json() == {"totalTokens": len(house.engine.prompts[0])}
    access = house.gateway.open("r2", sampling=Sampling())
    options = types.HttpOptions(base_url=house.address + access.path)
    async with genai.Client(api_key="any", http_options=options).aio as client:
        assert (await client.models.count_tokens(model="m", contents=ASK)).total_tokens < len(house.engine.prompts[0])


@pytest.mark.parametrize("version", ["v1beta", "v1"])
async def test_model_names_hold_slashes_and_colons(house, version):
    assert (await post(house, {"contents": [user(ASK)]}, model="openai/gpt-5:high", version=version)).status_code == 200
    assert (await post(house, {"contents": [user(ASK)]}, method="unknown")).status_code == 404


async def test_key_in_the_header_or_the_query_names_the_rollout(house):
    async with sdk(house, on_path=False) as client:
        await client.models.generate_content(model="m", contents=ASK)
    access = house.gateway.open("r2", sampling=Sampling())
    async with httpx.AsyncClient(base_url=house.address) as client:
        for key, status in ((access.api_key, 200), ("wrong", 401)):
            answer = await client.post(f"/v1beta/models/m:generateContent?key={key}", json={"contents": [user(ASK)]})
            assert answer.status_code == status
    assert answer.json()["error"]["status"] == "UNAUTHENTICATED"
    assert [call.rollout_id for call in house.log.calls] == ["r1", "r2"]


# --- mistakes and failures ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"contents": []}, "'contents' must be a non-empty array"),
        ({"contents": [user({"inlineData": {"mimeType": "image/png", "data": ""}})]}, "inlineData is not supported"),
        ({"contents": [user({"file_data": {"fileUri": "x"}})]}, "fileData is not supported"),
        ({"contents": [user({"functionCall": {"name": "add"}})]}, "contents[0].parts[0]: functionCall"),
        ({"contents": [{"role": "robot", "parts": []}]}, "contents[0].role: 'robot'"),
        ({"contents": [user({"text": 3})]}, "contents[0].parts[0].text must be a string"),
        ({"contents": [{"role": "model", "parts": [{"functionCall": {"name": "add", "args": [1]}}]}]}, "args must be an object"),
        ({"tools": [{"googleSearch": {}}]}, "tools[0].googleSearch is not supported"),
        ({"tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0].name is missing"),
        ({"generationConfig": {"candidateCount": 2}}, "'candidateCount' must be 1"),
        ({"generationConfig": {"maxOutputTokens": "many"}}, "maxOutputTokens"),
        ({"cachedContent": "cachedContents/x"}, "'cachedContent' is not supported"),
    ],
)
async def test_bad_request_is_one_clear_400_in_googles_shape(house, body, says):
    answer = await post(house, {"contents": [user(ASK)], **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")
    assert says in error["message"]
    assert not house.log.calls


async def test_stream_that_is_not_asked_for_as_events_is_refused(house):
    answer = await post(house, {"contents": [user(ASK)]}, method="streamGenerateContent")
    assert (answer.status_code, "alt=sse" in answer.json()["error"]["message"]) == (400, True)


async def test_sdk_raises_its_own_errors_with_our_message(house):
    async with sdk(house) as client:
        await house.gateway.close("r1")
        with pytest.raises(errors.ClientError, match="not open") as caught:
            await client.models.generate_content(model="m", contents=ASK)
        assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")


async def test_sdk_raises_when_a_stream_fails_midway(house):
    async with sdk(house) as client:
        house.say("one two", closed=False, error=RuntimeError("out of memory"))
        stream, chunks = await client.models.generate_content_stream(model="m", contents=ASK), []

        async def read():
            async for chunk in stream:
                chunks.append(chunk)

        with pytest.raises(errors.ServerError, match="out of memory"):
            await read()
    assert chunks
    assert all(chunk.candidates[0].finish_reason is None for chunk in chunks)


async def test_failed_stream_ends_within_an_event_so_that_no_client_passes_over_it(house):
    house.say("one two", closed=False, error=RuntimeError("boom"))
    answer = await post(house, {"contents": [user(ASK)]}, method="streamGenerateContent", query="?alt=sse")
    *events, last = answer.text.split("\n\n")
    assert all(event.startswith("data: ") for event in events)
    assert json.loads(last)["error"]["status"] == "INTERNAL"


# --- schemas ------------------------------------------------------------------------------------------------------------------------------


def test_googles_schemas_become_json_schema_and_property_names_stay():
    assert json_schema(
        {
            "type": "OBJECT",
            "property_ordering": ["type"],
            "properties": {
                "type": {"type": "STRING", "enum": ["A"], "nullable": True},
                "any_of": {"anyOf": [{"type": "STRING"}, {"type": "ARRAY", "items": {"type": "NUMBER"}, "maxItems": "3"}]},
                "free": {"type": "TYPE_UNSPECIFIED"},
            },
            "required": ["type"],
        }
    ) == {
        "type": "object",
        "properties": {
            "type": {"type": ["string", "null"], "enum": ["A", None]},
            "any_of": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "number"}, "maxItems": 3}]},
            "free": {},
        },
        "required": ["type"],
    }
