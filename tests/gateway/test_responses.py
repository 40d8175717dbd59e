"""The Responses API through real HTTP and the unmodified `openai` SDK."""

from __future__ import annotations

import json
import random

import httpx
import openai
import pytest

from openforge.types import FinishReason, Sampling

ADD = {"type": "function", "name": "add", "description": "adds", "parameters": {"type": "object"}}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin"},
}
CRM = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [{"type": "function", "name": "find", "parameters": {}}]}
TOOLS = [ADD, PATCH, CRM, {"type": "web_search"}]
ASK = {"role": "user", "content": "hello"}


def hermes_call(name: str, **arguments: object) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


async def respond(client: openai.AsyncOpenAI, items, *, stream: bool, **options):
    """The response, which streamed is that of the terminal event."""
    options = {"model": "m", "input": items, "tools": TOOLS, "store": False, "include": ["reasoning.encrypted_content"], **options}
    if not stream:
        return await client.responses.create(**options)
    async with client.responses.stream(**options) as events:
        *_, last = [event async for event in events]
    return last.response


def echo(response, *, ids: bool = True) -> list[dict]:
    """A response's items as a client sends them back; some clients leave the ids out."""
    return [
        item.model_dump(exclude={"parsed_arguments"} if ids else {"parsed_arguments", "id"}, exclude_none=True) for item in response.output
    ]


def results(response) -> list[dict]:
    return [
        {"type": f"{item.type}_output", "call_id": item.call_id, "output": "3"}
        for item in response.output
        if item.type in ("function_call", "custom_tool_call")
    ]


async def post(house, body, *, path="/r/r1/v1/responses", key="any"):
    async with httpx.AsyncClient(base_url=house.address) as client:
        return await client.post(path, json={"model": "m", "input": "hello", **body}, headers={"authorization": f"Bearer {key}"})


def prompt_text(house, call) -> str:
    return house.engine.tokenizer.decode(call.delta, skip_special_tokens=False)


# --- conversations ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_stateless_tool_loop_continues_its_own_tokens(house, stream, ids):
    client = await house.client()
    house.say("<think>\nhm\n</think>\n\nBoth.\n" + hermes_call("add", a=1) + "\n" + hermes_call("add", a=2))
    house.say("<think>\nand\n</think>\n\n" + hermes_call("add", a=3))
    house.say("Six.")
    items = [{"role": "developer", "content": "Be good."}, ASK]
    for _ in range(3):
        response = await respond(client, items, stream=stream)
        items += [*echo(response, ids=ids), *results(response)]
    assert response.output_text == "Six."
    one, two, three = house.log.calls
    assert [call.fork for call in house.log.calls] == [None] * 3
    assert house.engine.prompts[1] == house.engine.prompts[0] + one.sampled + two.delta
    assert house.engine.prompts[2] == house.engine.prompts[1] + two.sampled + three.delta
    assert two.request["messages"] == [{"role": "tool", "content": "3", "tool_call_id": c["id"]} for c in one.response["tool_calls"]]


async def test_a_freeform_tool_is_called_with_raw_text(house):
    # antirez/ds4#745, caozhiyuan/copilot-api#242, Wei-Shaw/sub2api#3390: apply_patch as a function call is of no use to Codex.
    client = await house.client()
    patch = '*** Begin Patch\n+print("é")\n*** End Patch'
    house.say(hermes_call("apply_patch", input=patch))
    response = await respond(client, [ASK], stream=True)
    [item] = response.output
    assert (item.type, item.name, item.input) == ("custom_tool_call", "apply_patch", patch)
    await respond(client, [ASK, *echo(response), *results(response)], stream=True)
    one, two = house.log.calls
    assert (two.parent_id, two.fork) == (one.id, None)
    assert one.request["tools"][1]["description"] == "Edits files.\n\nThe input must match this lark grammar:\nstart: begin"
    assert one.request["tools"][1]["parameters"]["required"] == ["input"]


async def test_a_freeform_call_without_input_reaches_the_client_as_it_was_written(house):
    client = await house.client()
    house.say(hermes_call("apply_patch", patch="x"))
    response = await respond(client, [ASK], stream=False)
    assert response.output[0].input == '{"patch": "x"}'
    await respond(client, [ASK, *echo(response), *results(response)], stream=False)
    assert house.log.calls[1].fork is None


async def test_a_namespaced_tool_has_one_name_for_the_model_and_its_own_for_the_client(house):
    client = await house.client()
    house.say(hermes_call("crm__find", who="Ada"))
    response = await respond(client, [ASK], stream=True)
    [item] = response.output
    assert (item.type, item.namespace, item.name) == ("function_call", "crm", "find")
    await respond(client, [ASK, *echo(response), *results(response)], stream=True)
    one, two = house.log.calls
    assert (two.parent_id, two.fork) == (one.id, None)
    assert one.request["tools"][2]["name"] == "crm__find"
    assert one.request["tools"][2]["description"] == "Customers."


async def test_text_behind_a_call_keeps_its_place_and_its_turn(house):
    # openai/codex#45096: a turn that is split ends there.
    client = await house.client()
    house.say("Before.\n" + hermes_call("add", a=1) + " after")
    response = await respond(client, [ASK], stream=True)
    assert [item.type for item in response.output] == ["message", "function_call", "message"]
    await respond(client, [ASK, *echo(response), *results(response)], stream=True)
    one, two = house.log.calls
    assert (two.parent_id, two.fork) == (one.id, None)


async def test_reasoning_that_a_client_echoes_is_read_again(house):
    client = await house.client()
    house.say("<think>\nhm\n</think>\n\nfour")
    response = await respond(client, [ASK], stream=False)
    assert response.output[0].summary[0].text == "hm"
    assert response.output[0].encrypted_content
    # Another rollout: nothing of the first is stored for it.
    other = await house.client("r2")
    await respond(other, [ASK, *echo(response), ASK], stream=False)
    assert house.log.calls[1].request["messages"][1]["reasoning"] == "hm"
    assert "<think>\nhm\n</think>" in prompt_text(house, house.log.calls[1])


@pytest.mark.parametrize("seed", range(3))
async def test_any_tokens_are_answered_alike_streamed_and_plain(house, seed):
    ids = random.Random(seed).choices(range(3, house.engine.tokenizer.get_vocab_size()), k=40)
    client = await house.client()
    outputs = []
    for stream in (True, False):
        house.say(ids=ids)
        response = await respond(client, "hello", stream=stream)
        outputs.append([(item["type"], item.get("content")) for item in echo(response)])
    assert outputs[0] == outputs[1] != []


async def test_an_empty_reply_is_a_complete_response(house):
    client = await house.client()
    house.say("")
    response = await respond(client, "hello", stream=True)
    assert (response.status, response.output) == ("completed", [])


async def test_a_call_of_a_tool_nobody_offered_is_the_clients_to_answer(house):
    client = await house.client()
    house.say(hermes_call("unheard_of", a=1))
    response = await respond(client, "hello", stream=True)
    assert (response.output[0].type, response.output[0].name) == ("function_call", "unheard_of")


# --- streams ------------------------------------------------------------------------------------------------------------------------------


async def test_a_stream_is_server_sent_events_and_a_plain_reply_is_json(house):
    # liu1700/webai-at-home#213: 404 on /v1/responses; NVIDIA-NeMo/Gym#1389: Codex rejects a plain reply to a request for a stream.
    access = house.gateway.open("r1", sampling=Sampling())
    for path in ("/r/r1/v1/responses", "/v1/responses"):
        streamed = await post(house, {"stream": True}, path=path, key=access.api_key)
        assert (streamed.status_code, streamed.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        plain = await post(house, {}, path=path, key=access.api_key)
        assert (plain.status_code, plain.headers["content-type"], plain.json()["object"]) == (200, "application/json", "response")


async def test_text_comes_token_by_token(house):
    client = await house.client()
    house.say("one two three", pause_at=4)
    seen = ""
    async for event in await client.responses.create(model="m", input="hello", stream=True):
        if event.type == "response.output_text.delta":
            seen += event.delta
            if seen.startswith("one"):
                break  # the engine still waits: these pieces came while the reply was being sampled
    assert not house.log.calls


async def test_an_engine_error_within_a_stream_is_its_one_terminal_event(house):
    # openai/codex#41340, ollama/ollama#14600.
    await house.client()
    house.say("one two", closed=False, error=RuntimeError("boom"))
    answer = await post(house, {"stream": True})
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert [e["type"] for e in events if e["type"].rsplit(".")[-1] in ("completed", "incomplete", "failed")] == ["response.failed"]
    assert events[-1]["response"]["error"] == {"code": "server_error", "message": "the engine failed: RuntimeError: boom"}


async def test_an_engine_error_before_the_first_token_is_a_500(house):
    client = await house.client()
    house.say("", closed=False, error=RuntimeError("boom"))
    with pytest.raises(openai.InternalServerError, match="boom"):
        await respond(client, "hello", stream=True)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_reply_cut_by_length_is_incomplete_and_is_continued(house, stream):
    client = await house.client(sampling=Sampling(max_tokens=50))
    house.say("one two three four five six")
    response = await respond(client, [ASK], stream=stream, max_output_tokens=4)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[-1].status == "incomplete"
    assert response.usage.output_tokens == 4
    await respond(client, [ASK, *echo(response), ASK], stream=stream)
    assert house.log.calls[0].finish == FinishReason.LENGTH
    assert house.log.calls[1].fork is None


# --- requests -----------------------------------------------------------------------------------------------------------------------------


async def test_instructions_and_developer_messages_are_system_messages_in_their_places(house):
    client = await house.client()
    items = [{"role": "developer", "content": [{"type": "input_text", "text": "one"}]}, ASK, {"role": "system", "content": "two"}, ASK]
    await client.responses.create(model="m", instructions="first", input=items)
    roles = [(m["role"], m["content"]) for m in house.log.calls[0].request["messages"]]
    assert roles == [("system", "first"), ("system", "one"), ("user", "hello"), ("system", "two"), ("user", "hello")]


async def test_what_is_not_obeyed_is_recorded(house):
    client = await house.client()
    sent = {
        "temperature": 0.1,
        "reasoning": {"effort": "high"},
        "text": {"verbosity": "low"},
        "prompt_cache_key": "k",
        "tool_choice": "none",
    }
    body = {"client_metadata": {"x": "y"}, "unheard_of": [1]}
    response = await client.responses.create(model="m", input="hello", tools=TOOLS, parallel_tool_calls=False, extra_body=body, **sent)
    [call] = house.log.calls
    assert {key: call.request[key] for key in (*sent, *body)} == {**sent, **body}
    assert call.request["tools_not_offered"] == [{"type": "web_search"}]
    assert call.sampling.temperature == 1.0
    assert (response.parallel_tool_calls, response.tool_choice, response.prompt_cache_key) == (False, "none", "k")
    assert [tool.type for tool in response.tools] == ["function", "custom", "namespace"]


async def test_input_tokens_are_those_of_the_prompt(house):
    client = await house.client()
    counted = await client.responses.input_tokens.count(model="m", input=[ASK], tools=[ADD])
    response = await client.responses.create(model="m", input=[ASK], tools=[ADD])
    assert counted.input_tokens == response.usage.input_tokens == len(house.log.calls[-1].delta)


IMAGE = {"type": "input_image", "image_url": "data:"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        # openai/codex#3841, raullenchai/Rapid-MLX#588: without its history the prompt would be lost and nobody told.
        ({"previous_response_id": "resp_1"}, "'previous_response_id' is not supported"),
        ({"conversation": "conv_1"}, "'conversation' is not supported"),
        ({"prompt": {"id": "pmpt_1"}}, "'prompt' is not supported"),
        ({"background": True}, "'background' is not supported"),
        ({"input": None}, "'input'"),
        ({"input": []}, "'input' must not be empty"),
        ({"input": ["hello"]}, "input[0] must be an object"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": ["user"], "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0]: parts of type 'input_image'"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": [IMAGE]}]}, "input[0].output[0]: parts of type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "items of type 'item_reference'"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "items of type 'compaction'"),
        ({"input": [{"type": {}}]}, "input[0].type must be a string"),
        ({"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]}, "input[0].name is missing"),
        ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary must be an array"),
        ({"include": 3}, "'include'"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": {"a": 1}}, "tools must be an array"),
        ({"tools": [{"type": "function"}]}, "tools[0].name is missing"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]}]}, "tools[0].tools[0].type"),
        ({"tools": [CRM, {"type": "function", "name": "crm__find"}]}, "'crm__find'"),
    ],
)
async def test_bad_request_is_one_clear_400(house, body, says):
    await house.client()
    answer = await post(house, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert says in answer.json()["error"]["message"]
    assert not house.log.calls
