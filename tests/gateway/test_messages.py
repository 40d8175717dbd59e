"""Messages requests as turns, and agents' conversations through real HTTP and the unmodified `anthropic` SDK."""

from __future__ import annotations

import copy
import json

import anthropic
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openforge.gateway.dialects.base import BadRequest, Target
from openforge.gateway.dialects.messages import Messages
from openforge.gateway.relay import Patience
from openforge.gateway.turn import Message, Tool, ToolCall
from openforge.types import FinishReason, Sampling

ASK = [{"role": "user", "content": "hello"}]
TOOLS = [{"name": "add", "description": "adds", "input_schema": {"type": "object"}}]
CALLS = "".join(f'\n<tool_call>\n{{"name": "add", "arguments": {{"a": {a}}}}}\n</tool_call>' for a in (1, 2))
THOUGHT = "<think>\nboth at once\n</think>\n\nBoth."
REMINDER = "<system-reminder>\nMind the <b>list</b>.\n</system-reminder>\n"


def read(messages=ASK, *, path="/v1/messages", **fields):
    return Messages().read({"model": "m", "messages": messages, **fields}, Target(path=path, params={}, query={}))


def say(role, *blocks):
    return {"role": role, "content": list(blocks)}


def text(text, **fields):
    return {"type": "text", "text": text, **fields}


def use(id, **input):
    return {"type": "tool_use", "id": id, "name": "add", "input": input}


def result(id, content="3", **fields):
    return {"type": "tool_result", "tool_use_id": id, "content": content, **fields}


CALLED = say("assistant", use("a"), use("b"))


# --- reading ------------------------------------------------------------------------------------------------------------------------------


def test_blocks_become_canonical_messages():
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s1g"}
    redacted = {"type": "redacted_thinking", "data": "xyz"}
    history = [*ASK, say("assistant", thinking, redacted, text("So."), use("a", x=1)), say("user", result("a", [text("1"), text("2")]))]
    assert read(history, system="Be good.").messages == (
        Message("system", "Be good."),
        Message("user", "hello"),
        Message("assistant", "So.", "hm", (ToolCall("a", "add", '{"x": 1}'),), extra={"signature": "s1g", "blocks": [redacted]}),
        Message("tool", "1\n\n2", tool_call_id="a"),
    )


def test_system_blocks_stay_paragraphs():
    system = [text("x-anthropic-billing-header: cch=1;"), text("Be good.", cache_control={"type": "ephemeral"}), text("")]
    assert read(system=system).messages[0] == Message("system", "x-anthropic-billing-header: cch=1;\n\nBe good.")
    assert read(system=[]).messages == read().messages == (Message("user", "hello"),)


def test_system_message_within_the_list_keeps_its_place():
    """grok2api#598, sglang#28792, claude-code's mid-conversation instructions."""
    marker = {"type": "tool_addition", "tool_name": "add"}
    history = [
        *ASK,
        say("assistant", text("hi")),
        {"role": "system", "content": "Be brief."},
        say("system", marker),
        say("user", text("go")),
    ]
    assert [message.role for message in read(history, system="s").messages] == ["system", "user", "assistant", "system", "user"]
    assert read(history).messages[2] == Message("system", "Be brief.")


@pytest.mark.parametrize("content", [[], [text("")], "", None, [text(" "), text("")]])
def test_empty_content_is_tolerated(content):
    """claude-code#38630: one empty message makes a session unrecoverable."""
    turn = read([{"role": "user", "content": content}, {"role": "assistant", "content": content}, *ASK])
    assert [(m.role, m.content.strip()) for m in turn.messages] == [("user", ""), ("assistant", ""), ("user", "hello")]


def test_missing_result_or_call_is_tolerated():
    """claude-code#5457: an interrupted tool makes every later request a 400."""
    assert [m.role for m in read([*ASK, CALLED, say("user", result("b"))]).messages] == ["user", "assistant", "tool"]
    assert [m.role for m in read([*ASK, CALLED, say("user", text("stop"))]).messages] == ["user", "assistant", "user"]
    assert [m.role for m in read([say("user", result("nobody's"))]).messages] == ["tool"]


def test_reminders_beside_tool_results_stay_within_the_turn():
    content = [text(REMINDER), result("a", "1"), result("b", "2"), text(REMINDER * 2), text("")]
    a, b = read([*ASK, CALLED, say("user", *content)]).messages[2:]
    assert (a.role, a.content, a.tool_call_id) == ("tool", f"{REMINDER}\n\n1", "a")
    assert (b.role, b.content, b.tool_call_id) == ("tool", f"2\n\n{REMINDER * 2}", "b")


@pytest.mark.parametrize("words", ["and now?", f"{REMINDER} and now? {REMINDER}", "<system-reminder>and now?", f"{REMINDER}?"])
def test_what_a_user_says_beside_tool_results_follows_them(words):
    turn = read([*ASK, CALLED, say("user", text(words), result("a"), text(REMINDER), result("b"))])
    assert [(m.role, m.content) for m in turn.messages[2:]] == [("tool", f"3\n\n{REMINDER}"), ("tool", "3"), ("user", words)]


def test_reminders_without_tool_results_are_the_users():
    assert read([say("user", text(REMINDER), text("hello"))]).messages == (Message("user", f"{REMINDER}\n\nhello"),)


def test_markers_beside_tool_results_are_recorded_and_start_no_user_message():
    upload = {"type": "container_upload", "file_id": "f"}
    [answer] = read([*ASK, CALLED, say("user", result("a", is_error=True), upload)]).messages[2:]
    assert (answer.role, answer.content, answer.extra) == ("tool", "3", {"blocks": [upload], "is_error": True})


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([result("a", "1"), result("b", "2"), text(REMINDER), text("words"), text("")]), min_size=1))
def test_a_user_message_follows_tool_results_only_if_it_says_something(blocks):
    messages = read([*ASK, CALLED, say("user", *blocks)]).messages[2:]
    results = [block for block in blocks if block["type"] == "tool_result"]
    said = [block["text"] for block in blocks if block["type"] == "text" and block["text"] in ("words",) + (() if results else (REMINDER,))]
    assert [m.tool_call_id for m in messages if m.role == "tool"] == [block["tool_use_id"] for block in results]
    assert [m.content for m in messages if m.role == "user"] == (["\n\n".join(said)] if said or not results else [])
    assert sum(m.content.count(REMINDER) for m in messages) == blocks.count(text(REMINDER))


def test_tools_that_only_anthropic_can_run_are_recorded_and_not_offered():
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    turn = read(tools=[*TOOLS, search, {"type": "custom", "name": "now", "strict": True, "cache_control": {"type": "ephemeral"}}])
    assert turn.tools == (Tool("add", "adds", {"type": "object"}), Tool("now"))
    assert turn.fields["tools_not_offered"] == [search]


def test_unknown_and_unobeyed_fields_are_recorded():
    """claude-code#21595: a context-management strategy that needs thinking is a 400."""
    fields = {
        "thinking": {"type": "disabled"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        "metadata": {"user_id": "u"},
        "tool_choice": {"type": "any"},
        "betas": ["interleaved-thinking-2025-05-14"],
        "temperature": 0.2,
        "foo": [1],
    }
    turn = read(max_tokens=5, stop_sequences=["END"], **fields)
    assert fields.items() <= turn.fields.items()
    assert (turn.max_tokens, turn.stop, turn.model, turn.stream) == (5, ("END",), "m", False)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"messages": []}, "'messages' must be a non-empty array"),
        ({"messages": [{"role": "system", "content": ""}]}, "empty system messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role: 'tool' is not one of: user, assistant, system"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content must be a string or an array of blocks"),
        ({"messages": [say("user", "x")]}, "messages[0].content[0] must be an object"),
        ({"messages": [say("user", {"type": "text", "text": 3})]}, "messages[0].content[0].text must be a string"),
        ({"messages": [say("user", {"type": "image"})]}, "content[0]: 'image' blocks are not supported: the model is text-only"),
        ({"messages": [say("user", result("a", [{"type": "document"}]))]}, "messages[0].content[0].content[0]: 'document' blocks"),
        ({"messages": [say("assistant", {**use("a"), "input": [1]}), *ASK]}, "messages[0].content[0].input must be an object"),
        ({"messages": [*ASK, say("assistant", text("{"))]}, "must not end with an assistant message"),
        ({"system": [3]}, "system[0] must be an object"),
        ({"tools": "add"}, "tools must be an array"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name is missing"),
        ({"tools": [{"name": "add", "input_schema": 3}]}, "tools[0].input_schema must be an object"),
        ({"max_tokens": 0}, "'max_tokens' must be a positive integer"),
        ({"stop_sequences": 3}, "'stop_sequences' must be"),
    ],
)
def test_mistakes_are_told_in_one_line_with_their_place(body, says):
    with pytest.raises(BadRequest) as caught:
        read(body.pop("messages", ASK), **body)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


# --- conversations ------------------------------------------------------------------------------------------------------------------------


async def ask(client, messages, *, stream=False, **fields):
    fields = {"model": "claude", "max_tokens": 1000, "messages": messages, "tools": TOOLS, "system": "Add.", **fields}
    if not stream:
        return await client.messages.create(**fields)
    async with client.messages.stream(**fields) as reply:
        return await reply.get_final_message()


def echo(reply):
    return {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in reply.content]}


def answers(reply, *beside):
    return say("user", *(result(block.id) for block in reply.content if block.type == "tool_use"), *beside)


def assert_continues(house, count):
    """Every call's prompt literally begins with the call before it, reply and all."""
    calls = house.log.calls
    assert len(calls) == count
    for i in range(1, count):
        assert (calls[i].parent_id, calls[i].fork) == (calls[i - 1].id, None)
        start = house.engine.prompts[i - 1] + calls[i - 1].sampled
        assert house.engine.prompts[i][: len(start)] == start


@pytest.mark.parametrize("stream", [False, True])
async def test_parallel_tools_with_thinking_continue_their_own_tokens(house, stream):
    client, history = await house.anthropic(), list(ASK)
    for _ in range(3):
        house.say(THOUGHT + CALLS)
        reply = await ask(client, history, stream=stream)
        assert [block.type for block in reply.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert reply.stop_reason == "tool_use"
        history += [echo(reply), answers(reply)]
    last = await ask(client, history, stream=stream)
    assert (last.content[0].text, last.stop_reason) == ("ok", "end_turn")
    assert_continues(house, 4)
    assert [m["role"] for m in house.log.calls[1].request["messages"]] == ["tool", "tool"]
    assert house.log.calls[1].dialect == "messages"


async def test_reminders_beside_tool_results_start_no_new_turn(house):
    client = await house.anthropic()
    house.say(THOUGHT + CALLS)
    first = await ask(client, ASK)
    history = [*ASK, echo(first), answers(first, text(REMINDER))]
    house.say(THOUGHT + CALLS)
    second = await ask(client, history)
    await ask(client, [*history, echo(second), answers(second, text(REMINDER))])
    assert_continues(house, 3)
    shown = house.engine.tokenizer.decode(house.log.calls[2].delta, skip_special_tokens=False)
    assert shown.count("<|im_start|>user") == 1
    assert REMINDER in shown


async def test_client_that_drops_thoughts_still_continues(house):
    """claude-code#63265, hermes-agent#75725: the thoughts a client loses are still what was sampled."""
    client = await house.anthropic()
    house.say(THOUGHT + CALLS)
    first = await ask(client, ASK)
    shown = echo(first)
    shown["content"] = [block for block in shown["content"] if block["type"] != "thinking"]
    await ask(client, [*ASK, shown, answers(first)])
    assert_continues(house, 2)


async def test_cache_control_that_wanders_changes_no_prompt(house):
    client = await house.anthropic()
    mark = {"cache_control": {"type": "ephemeral"}}
    house.say(CALLS)
    first = await ask(client, [say("user", text("hello", **mark))], system=[text("Add.", **mark)])
    history = [*ASK, echo(first), answers(first)]
    marked = copy.deepcopy(history)
    marked[-1]["content"][-1].update(mark)
    house.say(CALLS)
    second = await ask(client, marked)
    await ask(client, [*history, echo(second), answers(second)], tools=[{**TOOLS[0], **mark}])
    assert_continues(house, 3)


async def test_billing_nonce_that_changes_with_every_request_changes_no_prompt(house):
    """vllm#36829, claude-code#68900: 13.7 times slower, and no two prompts with a common prefix."""
    client = await house.anthropic()
    systems = [[text(f"x-anthropic-billing-header: cc_version=2.1; cch={nonce};"), text("Add.")] for nonce in ("a1", "b2")]
    house.say(CALLS)
    first = await ask(client, ASK, system=systems[0])
    await ask(client, [*ASK, echo(first), answers(first)], system=systems[1])
    assert_continues(house, 2)


async def test_sampling_belongs_to_the_run_and_what_the_client_wished_is_recorded(house):
    """miles#2263: Claude Code sets its own."""
    client = await house.anthropic()
    await ask(client, ASK, extra_body={"temperature": 0.1, "top_k": 3}, max_tokens=9_000)
    [call] = house.log.calls
    assert (call.sampling.temperature, call.sampling.top_k, call.sampling.max_tokens) == (1.0, 0, Sampling().max_tokens)
    assert {"temperature": 0.1, "top_k": 3, "max_tokens": 9_000}.items() <= call.request.items()


async def test_text_after_a_call_comes_back_where_it_was(house):
    client = await house.anthropic()
    house.say("One." + CALLS + "\nTwo.")
    first = await ask(client, ASK, stream=True)
    assert [block.type for block in first.content] == ["text", "tool_use", "tool_use", "text"]
    await ask(client, [*ASK, echo(first), answers(first)])
    assert_continues(house, 2)


async def test_usage_leaves_cached_tokens_out_of_the_input(house):
    client = await house.anthropic()
    house.say(CALLS)
    first = await ask(client, ASK)
    second = await ask(client, [*ASK, echo(first), answers(first)], stream=True)
    call = house.log.calls[1]
    assert first.usage.cache_read_input_tokens == 0
    assert (second.usage.cache_read_input_tokens, second.usage.input_tokens) == (call.shared, len(call.delta))
    assert second.usage.output_tokens == len(call.sampled)


async def test_the_beta_api_is_the_same(house):
    client = await house.anthropic()
    reply = await client.beta.messages.create(
        model="claude", max_tokens=9, messages=ASK, betas=["context-management-2025-06-27"], context_management={"edits": []}
    )
    assert (reply.model, reply.content[0].text) == ("claude", "ok")
    assert house.log.calls[0].request["context_management"] == {"edits": []}


async def test_tokens_are_counted_over_the_rendered_prompt(house):
    """litellm#13252, #15323, ai-gateway#1360, CLIProxyAPI#679: no 404, and system and tools count."""
    client = await house.anthropic()
    request = {"model": "claude", "messages": [*ASK, say("assistant", text("hi"))], "system": "Add. " * 20, "tools": TOOLS}
    counted = await client.messages.count_tokens(**{**request, "messages": ASK})
    assert not house.engine.prompts
    await client.messages.create(**{**request, "messages": ASK}, max_tokens=9)
    assert counted.input_tokens == len(house.engine.prompts[0])
    assert (await client.messages.count_tokens(**request)).input_tokens > counted.input_tokens


async def test_stop_sequence_is_named(house):
    client = await house.anthropic()
    house.say("one END two")
    reply = await ask(client, ASK, stop_sequences=["END", "ENOUGH"], stream=True)
    assert (reply.content[0].text, reply.stop_reason, reply.stop_sequence) == ("one ", "stop_sequence", "END")


async def test_reply_cut_by_length_shows_a_half_call_as_text(house):
    client = await house.anthropic()
    house.say(CALLS)
    reply = await ask(client, ASK, max_tokens=9, stream=True)
    assert ([block.type for block in reply.content], reply.stop_reason) == (["text"], "max_tokens")


async def test_prompt_that_is_too_long_says_so_in_the_words_clients_know(make_house):
    async with make_house(context_length=20) as house:
        client = await house.anthropic()
        for stream in (False, True):
            with pytest.raises(anthropic.BadRequestError) as caught:
                await ask(client, ASK, stream=stream)
            assert caught.value.body["error"]["type"] == "invalid_request_error"
            assert caught.value.body["error"]["message"].startswith("prompt is too long: ")


async def test_unknown_rollout_is_told_in_anthropics_shape(house):
    async with httpx.AsyncClient() as client:
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            answer = await client.post(f"{house.address}/r/gone{path}", json={"messages": ASK})
            assert answer.status_code == 404
            assert answer.json()["error"]["type"] == "not_found_error"
            assert answer.json()["type"] == "error"


async def test_engine_that_fails_in_a_stream_is_an_error_event(house):
    client = await house.anthropic()
    house.say("some text", closed=False, error=RuntimeError("out of memory"))
    with pytest.raises(anthropic.APIStatusError, match="out of memory"):
        await ask(client, ASK, stream=True)
    assert house.log.calls[0].finish == FinishReason.ERROR


async def test_silence_is_filled_with_pings(make_house):
    """claude-code#53379: an idle stream is given up."""
    async with make_house(patience=Patience(ping=0.02)) as house:
        access = house.gateway.open("r1", sampling=Sampling())
        house.say("one two", pause_at=1)
        body = {"model": "m", "messages": ASK, "stream": True}
        async with (
            httpx.AsyncClient() as client,
            client.stream("POST", f"{house.address}{access.path}/v1/messages?beta=true", json=body) as reply,
        ):
            assert reply.headers["content-type"].startswith("text/event-stream")
            lines = reply.aiter_lines()
            seen = [line async for line in first(lines, until="event: ping")]
            assert json.loads((await anext(lines)).removeprefix("data: ")) == {"type": "ping"}
        assert seen[0] == "event: message_start"


async def first(lines, *, until):
    async for line in lines:
        yield line
        if line == until:
            return
