"""Hermes: rendering against the tokenizer's own template, and the parser's laws."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openforge.gateway.formats import load_format
from openforge.gateway.formats.hermes_parser import HermesParser
from openforge.gateway.formats.think_parser import ThinkParser
from openforge.gateway.reply import Reply
from openforge.gateway.text import encode, own_tokenizer
from openforge.gateway.turn import Message, Tool, ToolCall
from openforge.types import UserError

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def hermes_parser() -> ThinkParser:
    return ThinkParser(HermesParser(), prefilled=False, call_open="<tool_call>")


def parse(*pieces: str) -> Message:
    parser, reply = hermes_parser(), Reply()
    for piece in pieces:
        reply.add(parser.feed(piece))
    reply.add(parser.finish())
    return reply.message()


def plain(message: Message) -> tuple[str, str, list[tuple[str, str]]]:
    return message.content, message.reasoning, [(call.name, call.arguments) for call in message.tool_calls]


@pytest.mark.parametrize(
    "roles",
    ["user", "system user", "user assistant user", "system user assistant user assistant", "user user", "user system user"],
)
def test_without_tools_the_prompt_is_the_tokenizers_own(tokenizer, roles):
    messages = [Message(role, f"text {i} é") for i, role in enumerate(roles.split())]
    rows = [{"role": m.role, "content": m.content} for m in messages]
    expected = tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=True)
    assert load_format(None, tokenizer).prompt(messages, ()) == expected


def test_pieces_add_up_to_the_whole_in_text_and_in_tokens(tokenizer):
    format, core = load_format("hermes", tokenizer), own_tokenizer(tokenizer)
    tools = [Tool("add", "adds", {"type": "object"})]
    before = [Message("system", "Be good."), Message("user", "1+1?")]
    reply = Message("assistant", "Let me see.", "easy", (ToolCall("1", "add", '{"a": 1}'), ToolCall("2", "add", '{"a": 2}')))
    after = [Message("tool", "2"), Message("tool", "3"), Message("user", "well?")]
    whole = format.prompt([*before, reply, *after], tools)
    pieces = [format.prompt(before, tools), format.reply(reply), format.continuation(after, tools, after=reply, closed=True)]
    assert "".join(pieces) == whole
    assert [id for piece in pieces for id in encode(core, piece)] == encode(core, whole)
    truncated = [pieces[0], pieces[1].removesuffix("<|im_end|>"), format.continuation(after, tools, after=reply, closed=False)]
    assert [id for piece in truncated for id in encode(core, piece)] == encode(core, whole)
    assert whole.endswith(format.opening(tools, after=after[-1]))
    assert encode(core, "<|im_end|>") == [format.stop_token_ids[0]]


def test_tools_preamble_is_short_and_holds_the_schema(tokenizer):
    tool = Tool("add", "adds two", {"type": "object", "properties": {"a": {"type": "integer"}}})
    prompt = load_format("hermes", tokenizer).prompt([Message("user", "x")], [tool])
    assert prompt.startswith("<|im_start|>system\n<tools>\n")
    line = prompt.split("<tools>\n")[1].split("\n</tools>")[0]
    assert json.loads(line) == {"name": "add", "description": "adds two", "parameters": tool.parameters}
    with_system = load_format("hermes", tokenizer).prompt([Message("system", "Be good."), Message("user", "x")], [tool])
    assert with_system.startswith("<|im_start|>system\nBe good.\n\n<tools>\n")


def test_unknown_format_and_unfit_tokenizer_are_user_errors(tiny_tokenizer):
    with pytest.raises(UserError, match=r"unknown format 'hermies'; known: .*hermes"):
        load_format("hermies", tiny_tokenizer)

    class Bare:
        chat_template = None

        def get_vocab(self):
            return {"a": 0}

    with pytest.raises(UserError, match="cannot tell the format"):
        load_format(None, Bare())
    with pytest.raises(UserError, match=r"lacks .*im_start"):
        load_format("hermes", Bare())


@pytest.mark.parametrize(
    ("text", "content", "reasoning", "calls"),
    [
        ("hello", "hello", "", []),
        (CALL, "", "", [("add", '{"a": 1}')]),
        (f"Sure.\n{CALL}\n{CALL}", "Sure.", "", [("add", '{"a": 1}')] * 2),
        (f"{CALL}{CALL}\n", "", "", [("add", '{"a": 1}')] * 2),
        (f"{CALL}\nDone.", "\nDone.", "", [("add", '{"a": 1}')]),
        ("<think>\nhm\n</think>\n\nYes", "Yes", "hm", []),
        (f"<think>\nhm\n</think>\n\n{CALL}", "", "hm", [("add", '{"a": 1}')]),
        ("<think>\nnever end", "", "never end", []),
        ("  <think>", "", "", []),
        ("a <think> b", "a <think> b", "", []),
        ("<thinking>", "<thinking>", "", []),
        ('<tool_call>{"arguments":{"x":"</tool_call>"},"name":"f"}</tool_call>', "", "", [("f", '{"x":"</tool_call>"}')]),
        ('<tool_call>{"name": "f", "arguments": {"x": "\\"}</tool_call>"}}</tool_call>', "", "", [("f", '{"x": "\\"}</tool_call>"}')]),
        (f"<tool_call>{CALL}", "<tool_call>", "", [("add", '{"a": 1}')]),
    ],
)
def test_reply_is_read(text, content, reasoning, calls):
    assert plain(parse(text)) == (content, reasoning, calls)


@pytest.mark.parametrize(
    "text",
    [
        CALL[:-1],
        CALL.removesuffix("\n</tool_call>"),
        '<tool_call>\n{"name": "add", "argum',
        "<tool_call>\nadd(1)\n</tool_call>",
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}\n</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}}\n</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}} {}\n</tool_call>',
        '<tool_call>\n{"name": "add"}\n</tool_call>',
        '<tool_call>\n{"name": "", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": 1, "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": "{}"}\n</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": "add", "name": "sub", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": {"a": NaN}}\n</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": {"a": "one\ntwo"}}\n</tool_call>',
        "<tool_call>\n{'name': 'add', 'arguments': {}}\n</tool_call>",
        '<tool_call>{"name": "add", "arguments": ' + '{"a":' * 20_000 + "1" + "}" * 20_001 + "</tool_call>",
        "<tool_call>[]</tool_call>",
        '<tool_call>{"name": "\\ud83d", "arguments": {}}</tool_call>',
        "<tool_call>",
        "</tool_call>",
        "<tool_ca",
        " \n",
    ],
)
def test_malformed_or_truncated_call_stays_visible_text(text):
    assert plain(parse(text)) == (text, "", [])
    assert plain(parse("a" + text)) == ("a" + text, "", [])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
tricky = st.sampled_from(
    ["</tool_call>", "<tool_call>", '"}', "{", "\\", "\n", "<think>", '{"name": "f", "arguments": {}}', "<|im_end|>", "é👋"]
)


@given(
    st.lists(
        st.tuples(st.text(min_size=1), st.dictionaries(st.text() | tricky, json_values | tricky, max_size=3), st.booleans()), max_size=3
    ),
    st.data(),
)
@settings(max_examples=200, deadline=None)
def test_what_is_rendered_is_parsed_back(tiny_tokenizer, calls, data):
    made = tuple(ToolCall("", name, json.dumps(args, ensure_ascii=ascii)) for name, args, ascii in calls)
    content = data.draw(st.text(alphabet="ab \n{}<", max_size=8))
    reasoning = data.draw(st.text(alphabet="ab \n{}<", max_size=8))
    text = load_format("hermes", tiny_tokenizer).reply(Message("assistant", content, reasoning, made)).removesuffix("<|im_end|>")
    # Arguments are rendered as a template's tojson writes them, whatever escapes a client sent them with.
    assert plain(parse(text)) == (content, reasoning, [(name, json.dumps(args, ensure_ascii=False)) for name, args, _ in calls])


fragments = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        '{"name": "f", "arguments": {"a": "b"}}',
        '{"name":',
        '"',
        "\\",
        "{",
        "}",
        "\n",
        " ",
        "x",
        "<",
        "</",
    ]
)


@given(st.lists(fragments, max_size=12).map("".join), st.data())
@settings(max_examples=400, deadline=None)
def test_events_do_not_depend_on_how_the_text_was_cut(text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert plain(parse(*pieces)) == plain(parse(text)) == plain(parse(*text))


@given(st.lists(fragments, max_size=12).map("".join))
@settings(max_examples=200, deadline=None)
def test_no_visible_character_is_lost(text):
    """What is neither markup that was understood nor white space comes out again."""
    message = parse(text)
    shown = message.content + message.reasoning + "".join(call.arguments for call in message.tool_calls)
    assert sum(char in "x\\" for char in shown) == sum(char in "x\\" for char in text)
    if not message.tool_calls and not text.lstrip().startswith("<think>"):
        assert message.content == text


def test_text_streams_before_the_reply_ends_and_a_call_when_it_is_whole():
    parser, reply = hermes_parser(), Reply()
    reply.add(parser.feed("Let me "))
    assert reply.message().content == "Let me "
    reply.add(parser.feed(f"see.\n{CALL}"))
    assert plain(reply.message())[2] == [("add", '{"a": 1}')]
