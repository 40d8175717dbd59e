"""Llama 3 against Meta's own templates, and what is particular to it: bare JSON, `<|python_tag|>`, the date."""

from __future__ import annotations

import functools
import json
from datetime import datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.gateway.templates import templated
from transformers import PreTrainedTokenizerFast

from openforge.gateway.formats import Format, load_format
from openforge.gateway.formats.llama3_parser import Llama3Parser
from openforge.gateway.formats.template import Template
from openforge.gateway.reply import Reply
from openforge.gateway.splice import Splicer
from openforge.gateway.text import encode, own_tokenizer
from openforge.gateway.turn import Message, Tool, ToolCall

TOKENS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
)
TOOLS = [Tool("add", "adds é", {"type": "object", "properties": {"a": {"type": "integer"}}}), Tool("get_time", "", {"type": "object"})]
ASSISTANT = "<|start_header_id|>assistant<|end_header_id|>\n\n"


@functools.cache
def tokenizer_of(model: str) -> PreTrainedTokenizerFast:
    tokenizer = templated(model, TOKENS)
    tokenizer.bos_token = TOKENS[0]
    return tokenizer


@functools.cache
def format_of(model: str) -> Format:
    return load_format(None, tokenizer_of(model))


def parse(*pieces: str, tools=TOOLS) -> tuple[str, list[tuple[str, str]]]:
    parser, reply = Llama3Parser(tools), Reply()
    for piece in pieces:
        reply.add(parser.feed(piece))
    reply.add(parser.finish())
    message = reply.message()
    return message.content, [(call.name, call.arguments) for call in message.tool_calls]


texts = st.text(max_size=6) | st.sampled_from([" hi \n", "é👋", '"x"', "{{ x }}", ""])
arguments = st.dictionaries(texts, st.none() | st.integers() | texts | st.lists(texts, max_size=2), max_size=2)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """What the templates render: replies of text alone or of one call alone; system text may stand anywhere."""
    messages = [Message("system", draw(texts))] if draw(st.booleans()) else []
    messages.append(Message("user", draw(texts)))
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            call = ToolCall("", draw(st.sampled_from(["add", "get_time"])), json.dumps(draw(arguments), ensure_ascii=False))
            messages += [Message("assistant", tool_calls=(call,)), Message("tool", draw(texts))]
        else:
            messages += [Message("assistant", draw(texts)), Message(draw(st.sampled_from(["user", "system"])), draw(texts))]
    return messages


@pytest.mark.parametrize("model", ["llama-3.1", "llama-3.2"])
@given(messages=conversations(), tools=st.sampled_from([(), TOOLS]))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_prompt_is_the_chat_templates_own(model, messages, tools):
    template = Template(tokenizer_of(model), "llama3", date_string="26 Jul 2024")
    assert format_of(model).prompt(messages, tools) == template.render(messages, tools, opening=True)


def test_prompt_does_not_change_at_midnight():
    """The template of 3.2 writes today's date: every prompt of a rollout would fork when the day ends."""
    tokenizer, asked = tokenizer_of("llama-3.2"), [Message("user", "x")]
    assert datetime.now().strftime("%d %b %Y") in Template(tokenizer, "llama3").render(asked)
    assert "Today Date: 26 Jul 2024" in format_of("llama-3.2").prompt(asked, ())


def test_two_calls_and_text_before_a_call_are_kept():
    """The template refuses the one and drops the other: either would break the prefix of what was sampled."""
    first, second = ToolCall("", "add", '{"a": 1}'), ToolCall("", "get_time", "{}")
    format = format_of("llama-3.1")
    assert format.reply(Message("assistant", "", tool_calls=(first, second))) == (
        '{"name": "add", "parameters": {"a": 1}}; {"name": "get_time", "parameters": {}}<|eot_id|>'
    )
    assert format.reply(Message("assistant", "Let me see.", tool_calls=(second,))) == (
        'Let me see.<|python_tag|>{"name": "get_time", "parameters": {}}<|eot_id|>'
    )


def test_tools_stand_before_a_conversation_that_no_user_begins():
    prompt = format_of("llama-3.1").prompt([Message("system", "s"), Message("assistant", "hello"), Message("user", "x")], TOOLS)
    assert prompt.index('"get_time"') < prompt.index(f"<|eot_id|>{ASSISTANT}hello<|eot_id|>")
    without = format_of("llama-3.1").prompt([Message("system", "s"), Message("assistant", "hello")], ())
    assert without.endswith(f"s<|eot_id|>{ASSISTANT}hello<|eot_id|>{ASSISTANT}")


def test_call_that_ended_its_message_with_eom_is_closed_already():
    format, core = format_of("llama-3.1"), own_tokenizer(tokenizer_of("llama-3.1"))
    splicer = Splicer(format, core)
    asked, reply = [Message("user", "x")], Message("assistant", "", tool_calls=(ToolCall("1", "add", "{}"),))
    plan = splicer.plan(asked, TOOLS)
    splicer.begin(plan)
    splicer.commit(plan, "c", encode(core, '{"name": "add", "parameters": {}}<|eom_id|>'), reply)
    behind = splicer.plan([*asked, reply, Message("tool", "2")], TOOLS).delta
    assert (
        core.decode(list(behind), skip_special_tokens=False) == f'<|start_header_id|>ipython<|end_header_id|>\n\n"2"<|eot_id|>{ASSISTANT}'
    )


ADD, TIME = '{"name": "add", "parameters": {"a": 1}}', '{"name": "get_time", "parameters": {}}'
ADDED, TIMED = ("add", '{"a": 1}'), ("get_time", "{}")


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("hello", "hello", []),
        (ADD, "", [ADDED]),
        (f"\n {ADD}", "", [ADDED]),
        (f"<|python_tag|>{ADD}", "", [ADDED]),
        (f"Sure.<|python_tag|>{ADD}; {TIME}", "Sure.", [ADDED, TIMED]),
        (f"<|python_tag|>{ADD}; <|python_tag|>{TIME}", ";", [ADDED, TIMED]),
        ('{"type": "function", "name": "add", "parameters": {"a": 1}}', "", [ADDED]),
        ('{"name": "add", "arguments": {"a": 1}}', "", [ADDED]),
        ('<|python_tag|>{"name": "unknown", "parameters": {}}', "", [("unknown", "{}")]),
    ],
)
def test_reply_is_read(text, content, calls):
    assert parse(text) == (content, calls)


@pytest.mark.parametrize("separator", [";", "; ", ";\n", "\n", " ; ", ""])
def test_parallel_calls_are_all_found_whatever_separates_them(separator):
    """dynamo#9536, vllm#49923, vllm#11786: the second call was dropped, or began two characters too late."""
    assert parse(ADD + separator + TIME) == ("", [ADDED, TIMED])
    assert parse(*(ADD + separator + TIME)) == ("", [ADDED, TIMED])


def test_semicolons_and_braces_in_strings_separate_nothing():
    call = '{"name": "add", "parameters": {"a": "x; {\\"name\\": \\"add\\"}; }"}}'
    assert parse(f"{call}; {TIME}") == ("", [("add", '{"a": "x; {\\"name\\": \\"add\\"}; }"}'), TIMED])


def test_deeply_nested_arguments_are_one_call():
    """vllm#27701: an expression for braces found the innermost object only."""
    nested = '{"a": {"b": {"c": {"d": [1, {"e": {}}]}}}}'
    assert parse(f'{{"name": "add", "parameters": {nested}}}') == ("", [("add", nested)])


def test_text_behind_a_call_is_text_and_the_call_is_kept():
    """vllm#19024, vllm#49923: prose with braces behind a call hid the call."""
    assert parse(f"{ADD}\n\nI used {{add}}.") == ("\n\nI used {add}.", [ADDED])


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Bingo", "age": 30}',
        '{"name": "add", "age": 30}',
        '{"name": "Alice", "parameters": {"x": 1}}',
        '{"answer": {"name": "add", "parameters": {}}}',
        '[{"name": "add", "parameters": {}}]',
        f"The call is {ADD}",
        f"```json\n{ADD}\n```",
        '{"name": "add", "parameters": "{}"}',
        '{"name": "add", "parameters": {}, "arguments": {}}',
        '{"type": "object", "name": "add", "parameters": {}}',
        '{"name": "add", "parameters": {"a": NaN}}',
        '{"name": "add", "parameters": {"a": 1}',
        "{",
        '{"',
        "<|python_tag|>",
        "<|python_tag|>print(1)",
        '<|python_tag|>brave_search.call(query="x")',
        '<|python_tag|>foo.call(payload={"name":"add","parameters":{}}',
        ";",
        " \n",
    ],
)
def test_json_that_is_no_call_stays_text(text):
    """llama.cpp#18183, llama.cpp#16710: an answer in JSON was run as a call of a tool named Bingo."""
    assert parse(text) == (text, [])
    assert parse(*text) == (text, [])


def test_bare_json_is_text_in_a_turn_without_tools():
    assert parse(ADD, tools=[]) == (ADD, [])


def test_call_behind_text_that_opens_a_brace_is_found():
    assert parse(f"{{ see<|python_tag|>{ADD}") == ("{ see", [ADDED])


async def test_parallel_calls_and_their_results_go_through_the_gateway(make_house):
    """dynamo#4723, vllm#34322: every call has an index of its own, and the next prompt begins with what was sampled."""
    tools = [{"type": "function", "function": tool.record()} for tool in TOOLS]
    async with make_house(tokenizer=tokenizer_of("llama-3.1")) as house:
        client = await house.client()
        house.say(f"{ADD}; {TIME}")
        messages = [{"role": "user", "content": "What time is 1 o'clock plus one?"}]
        deltas = []
        async for chunk in await client.chat.completions.create(model="m", messages=messages, tools=tools, stream=True):
            deltas += chunk.choices[0].delta.tool_calls or []
        assert [(delta.index, delta.function.name, delta.function.arguments) for delta in deltas] == [(0, *ADDED), (1, *TIMED)]
        echo = [{"id": delta.id, "type": "function", "function": delta.function.model_dump()} for delta in deltas]
        results = [{"role": "tool", "tool_call_id": delta.id, "content": "2"} for delta in deltas]
        messages += [{"role": "assistant", "content": None, "tool_calls": echo}, *results]
        await client.chat.completions.create(model="m", messages=messages, tools=tools)
        first, second = await house.recorded(2)
    assert (second.parent_id, second.fork) == (first.id, None)
    assert list(house.engine.prompts[1][: len(house.engine.prompts[0])]) == list(house.engine.prompts[0])
