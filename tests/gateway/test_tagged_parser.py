"""Calls whose arguments stand as bare text between tags (MiniMax M2, Qwen3-Coder): what is written is read back, however it is cut."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openforge.gateway.formats import minimax_m2, xml_calls
from openforge.gateway.formats.tagged_parser import TaggedParser
from openforge.gateway.formats.think_parser import ThinkParser
from openforge.gateway.reply import Reply
from openforge.gateway.turn import Message, Tool, ToolCall

TAGS = {"m2": minimax_m2.TAGS, "coder": xml_calls.TAGS}
STRING, NULLABLE = {"type": "string"}, {"type": ["integer", "null"]}


def tool(**properties: object) -> Tool:
    return Tool("f", "", {"type": "object", "properties": properties})


def write(kind: str, *calls: dict[str, object], content: str = "") -> str:
    made = [ToolCall("", "f", json.dumps(call, ensure_ascii=False)) for call in calls]
    if kind == "m2":
        return content + minimax_m2.write_calls(made)
    return xml_calls.CallWriter(json_lists=kind == "coder", json_scalars=False).body(content, made)


def parse(kind: str, *pieces: str, tools: tuple[Tool, ...] = ()) -> Message:
    return run(TaggedParser(TAGS[kind], tools), *pieces)


def run(parser: TaggedParser | ThinkParser, *pieces: str) -> Message:
    reply = Reply()
    for piece in pieces:
        reply.add(parser.feed(piece))
    reply.add(parser.finish())
    return reply.message()


def arguments(message: Message) -> list[object]:
    return [json.loads(call.arguments) for call in message.tool_calls]


def plain(message: Message) -> tuple[str, str, list[tuple[str, str]]]:
    return message.content, message.reasoning, [(call.name, call.arguments) for call in message.tool_calls]


def invoke(value: str, *, key: str = "a") -> str:
    return f'<minimax:tool_call>\n<invoke name="f">\n<parameter name="{key}">{value}</parameter>\n</invoke>\n</minimax:tool_call>'


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ("    return 1\n", STRING, "    return 1\n"),
        ("null", STRING, "null"),
        ("5", NULLABLE, 5),
        ("null", NULLABLE, None),
        ("a</parameter>b", STRING, "a</parameter>b"),
        ("a</invoke>b", STRING, "a</invoke>b"),
        ("a</minimax:tool_call>b", STRING, "a</minimax:tool_call>b"),
        ("inf", {"type": "number"}, "inf"),
        ("3.0", {"type": "integer"}, 3),
        ("yes", {"type": "boolean"}, "yes"),
        ("[1, 2]", {"anyOf": [{"type": "array"}, {"type": "null"}]}, [1, 2]),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_values_that_the_makers_own_parser_gets_wrong(value, schema, expected):
    """Indentation, "null", unions, closing tags in values (vllm#44060, sglang#16057), numbers that are none, a compound schema."""
    (call,) = parse("m2", invoke(value), tools=(tool(a=schema),)).tool_calls
    found = json.loads(call.arguments)["a"]
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ("12", STRING, "12"),
        ("true", {"type": "boolean"}, True),
        ("1.50", {"type": "number"}, 1.5),
        ("3.5", {"type": "integer"}, 3.5),
        ("null", {"type": "integer"}, None),
        ('{"k": "v"}', {"type": "object"}, {"k": "v"}),
        ('{"k": "v"}', STRING, '{"k": "v"}'),
        ('"quoted"', {"type": "integer"}, '"quoted"'),
        ("x", {"enum": ["x", 1]}, "x"),
        ("1", {"enum": ["x", 1]}, 1),
        ("1", {"const": "1"}, "1"),
        ("[]", {"allOf": [{"type": ["array", "string"]}, {"type": "string"}]}, "[]"),
        ("7", {"$ref": "#/$defs/id"}, "7"),
        ("7", {"$ref": "#/$defs/loop"}, 7),
        ("7", {"$ref": "elsewhere"}, 7),
        ("7", {"$ref": "#/$defs/maze"}, 7),
        ("7", True, 7),
        ("seven", {}, "seven"),
        ("7", {"type": []}, 7),
        ("Infinity", {}, "Infinity"),
        ("1" * 5000, {"type": "integer"}, "1" * 5000),
        ("[" * 100_000, {"type": "array"}, "[" * 100_000),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_a_value_is_what_its_schema_says(value, schema, expected):
    definitions = {"id": STRING, "loop": {"$ref": "#/$defs/loop"}, "maze": {"anyOf": [{"$ref": "#/$defs/maze"}] * 9}}
    offered = Tool("f", "", {"type": "object", "properties": {"a": schema}, "$defs": definitions})
    assert arguments(parse("m2", invoke(value), tools=(offered,))) == [{"a": expected}]


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ("True", {"type": "boolean"}, True),
        ("None", NULLABLE, None),
        ("['a', \"b's\", None]", {"type": "array"}, ["a", "b's", None]),
        ("['a', {1, 2}]", {"type": "array"}, "['a', {1, 2}]"),
        ("None", STRING, "None"),
    ],
)
def test_values_that_the_template_writes_as_python_does_are_read(value, schema, expected):
    text = f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"
    assert arguments(parse("coder", text, tools=(tool(a=schema),))) == [{"a": expected}]


def test_a_union_with_string_reads_what_its_text_spells():
    """The bound: the string "5" and the number 5 are the same text there. The value wins (sglang#16057)."""
    schema = {"type": ["string", "integer", "null"]}
    for value in ("5", 5):
        assert arguments(parse("m2", write("m2", {"a": value}), tools=(tool(a=schema),))) == [{"a": 5}]
    assert arguments(parse("m2", write("m2", {"a": "5 apples"}), tools=(tool(a=schema),))) == [{"a": "5 apples"}]


FRAGMENTS = {
    kind: [
        tags.open_block,
        tags.close_block,
        tags.open_call.format(name="f"),
        tags.close_call,
        tags.open_parameter.format(name="a"),
        tags.open_parameter.format(name="new"),
        tags.close_parameter,
        tags.close_parameter[:-3],
        f"{tags.close_parameter}\n{tags.close_call}\n{tags.close_block}",
    ]
    for kind, tags in TAGS.items()
}
OTHER = ["\n", " ", "    x = 1\n", "null", "inf", "3.0", "é👋", "<", ">", '"', "</think>", "[e~[", "<|im_end|>", "\\", "text"]


def has_two_readings(kind: str, value: str) -> bool:
    """What the rule cannot decide: a fresh parameter or another call behind a closing tag, or a quoted call that is not whole."""
    tags = TAGS[kind]
    block, call, parameter = (
        re.escape(tag).replace(r"\{name\}", "[^<>]+") for tag in (tags.open_block, tags.open_call, tags.open_parameter)
    )
    ends = rf"{re.escape(tags.close_parameter)}\s*({parameter}|{re.escape(tags.close_call)}\s*{call})"
    return re.search(rf"{ends}|{block}\s*{call}", value) is not None


def values(kind: str) -> st.SearchStrategy[str]:
    fragments = st.sampled_from(FRAGMENTS[kind] + OTHER) | st.text(max_size=5)
    return st.lists(fragments, max_size=8).map("".join).filter(lambda value: not has_two_readings(kind, value))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner | st.text(max_size=4), max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
TYPED = tool(a=STRING, b=STRING, n={"type": ["integer", "number", "boolean", "null", "array", "object"]})


def calls(kind: str) -> st.SearchStrategy[dict[str, object]]:
    return st.fixed_dictionaries({}, optional={"a": values(kind), "n": json_values, "b": values(kind)})


@pytest.mark.parametrize("kind", TAGS)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_what_is_written_is_read_back(kind, data):
    made = data.draw(st.lists(calls(kind), min_size=1, max_size=3))
    content = data.draw(st.text(alphabet="ab \n<>é", max_size=8))
    content = content.strip() if TAGS[kind].trim else content
    text = write(kind, *made, content=content)
    message = parse(kind, text, tools=(TYPED,))
    assert (message.content, arguments(message)) == (content, made)
    assert plain(parse(kind, *text, tools=(TYPED,))) == plain(message)


@pytest.mark.parametrize("kind", TAGS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_whole_call_quoted_in_a_value_is_part_of_it(kind, data):
    simple = st.fixed_dictionaries({}, optional={"a": st.text(max_size=5), "n": json_values, "b": st.text(max_size=5)})
    quoted = write(kind, *data.draw(st.lists(simple, min_size=1, max_size=2)))
    made = {"a": f"as in:\n{quoted}\nand so on", "b": "x"}
    assert arguments(parse(kind, write(kind, made), tools=(TYPED,))) == [made]


@pytest.mark.parametrize("kind", TAGS)
def test_where_a_value_has_two_readings_the_call_of_tags_is_the_reading(kind):
    """The bound of the format: nothing is escaped, so a fresh parameter in a value reads as a parameter."""
    tags = TAGS[kind]
    pad = tags.padding
    value = f"x{pad}{tags.close_parameter}\n{tags.open_parameter.format(name='b')}{pad}y"
    assert arguments(parse(kind, write(kind, {"a": value}), tools=(TYPED,))) == [{"a": "x", "b": "y"}]


@pytest.mark.parametrize("kind", TAGS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_call_cut_short_is_never_guessed(kind, data):
    text = write(kind, data.draw(calls(kind).filter(lambda call: TAGS[kind].close_block not in json.dumps(call))))
    cut = data.draw(st.integers(0, len(text) - 1))
    assert plain(parse(kind, text[:cut], tools=(TYPED,))) == (text[:cut], "", [])


def test_calls_before_the_one_cut_short_stand():
    text = write("m2", {"a": "1"}, {"a": "2"}).removesuffix("</parameter>\n</invoke>\n</minimax:tool_call>")
    message = parse("m2", text, tools=(TYPED,))
    assert arguments(message) == [{"a": "1"}]
    assert message.content == '<invoke name="f">\n<parameter name="a">2'


def test_a_call_is_out_when_the_next_one_begins():
    """Not only when the reply has ended (vllm#39649), and text before it at once."""
    first, second = write("m2", {"a": "1"}, {"a": "2"}, content="Look.").split("<invoke", 2)[:2]
    parser, reply = TaggedParser(minimax_m2.TAGS, (TYPED,)), Reply()
    reply.add(parser.feed("Look"))
    assert reply.message().content == "Look"
    reply.add(parser.feed(f"{first.removeprefix('Look')}<invoke{second}<invoke name="))
    assert not reply.message().tool_calls
    reply.add(parser.feed('"f">'))
    assert arguments(reply.message()) == [{"a": "1"}]


@pytest.mark.parametrize("kind", TAGS)
def test_parallel_calls_have_an_index_and_an_id_each(kind):
    """vllm#34322, dynamo#4723: not merged, not renumbered. Two blocks, or two calls in one."""
    text = write(kind, {"a": "1"}, {"a": "2"}) + write(kind, {"a": "3"})
    message = parse(kind, text, tools=(TYPED,))
    assert arguments(message) == [{"a": "1"}, {"a": "2"}, {"a": "3"}]
    assert len({call.id for call in message.tool_calls}) == 3


@pytest.mark.parametrize("kind", TAGS)
def test_a_call_without_arguments_has_an_empty_object(kind):
    """earendil-works/pi#3325."""
    message = parse(kind, write(kind, {}, {}) + "\n")
    assert plain(message) == ("", "", [("f", "{}")] * 2)


@pytest.mark.parametrize("kind", TAGS)
def test_text_behind_a_block_is_text(kind):
    block = write(kind, {"a": "1"})
    assert plain(parse(kind, f"{block}\nDone.")) == ("\nDone.", "", [("f", '{"a": 1}')])
    assert plain(parse(kind, f"{block}\nThen{block}")) == ("\nThen", "", [("f", '{"a": 1}')] * 2)
    assert plain(parse(kind, f"{write(kind, {})} Done.")) == (" Done.", "", [("f", "{}")])


@pytest.mark.parametrize(
    "text",
    [
        "<minimax:tool_call>",
        "<minimax:tool_call>\n</minimax:tool_call>",
        '<minimax:tool_call>\n<invoke name="f">x</invoke>\n</minimax:tool_call>',
        '<minimax:tool_call>\n<invoke name="">\n</invoke>\n</minimax:tool_call>',
        '<minimax:tool_call>\n<invoke name="f">\n</minimax:tool_call>',
        '<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>',
        "<tool_calls>\n<invoke>",
        "a < b <minimax: <",
    ],
)
def test_what_is_no_call_stays_visible_text(text):
    assert plain(parse("m2", text)) == plain(parse("m2", *text)) == (text, "", [])


@pytest.mark.parametrize("kind", TAGS)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_events_do_not_depend_on_how_the_text_was_cut(kind, data):
    text = data.draw(st.lists(st.sampled_from(FRAGMENTS[kind] + OTHER), max_size=14).map("".join))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = parse(kind, text)
    assert plain(parse(kind, *pieces)) == plain(parse(kind, *text)) == plain(whole)
    if not whole.tool_calls:
        assert whole.content == text


CALL = write("m2", {"a": "1"}).lstrip("\n")


@pytest.mark.parametrize(
    ("prefilled", "text", "content", "reasoning", "called"),
    [
        (True, "hm\n</think>\n\nYes", "Yes", "hm", 0),
        (True, "</think>\n\nYes", "Yes", "", 0),
        (True, f"hm\n</think>\n\n\n{CALL}", "", "hm", 1),
        (True, "never ends", "", "never ends", 0),
        (True, f"hm\n{CALL}", "", "hm", 1),
        (True, f"hm\n{CALL}\n{CALL}", "", "hm", 2),
        (True, f"I could write\n{CALL}\nbut no\n</think>\n\nNo.", "No.", f"I could write\n{CALL}\nbut no", 0),
        (True, f"hm\n{CALL[:-1]}", "", f"hm\n{CALL[:-1]}", 0),
        (False, f"<think>\nhm\n</think>\n\nSo.\n{CALL}", "So.", "hm", 1),
        (False, f"<think>\nhm{CALL}", "", "hm", 1),
        (False, f"Yes.\n{CALL}", "Yes.", "", 1),
        (False, " \n", " \n", "", 0),
    ],
)
def test_reasoning_begins_where_the_prompt_left_off(prefilled, text, content, reasoning, called):
    """sglang#22637, sglang#28715, vllm#46042, MiniMax-M2#1: nothing leaks. Calls in reasoning that is never closed end it; calls that are
    quoted in reasoning are none. dynamo#11554: reasoning and a call in one reply."""

    def parser() -> ThinkParser:
        return ThinkParser(TaggedParser(minimax_m2.TAGS, (TYPED,)), prefilled=prefilled, call_open=minimax_m2.TAGS.open_block)

    assert plain(run(parser(), text)) == (content, reasoning, [("f", '{"a": "1"}')] * called)
    assert plain(run(parser(), *text)) == plain(run(parser(), text))


thoughts = st.sampled_from(["<think>", "</think>", CALL, CALL[:30], "\n", " ", "x", "<", "</thi"])


@given(st.lists(thoughts, max_size=9).map("".join), st.booleans(), st.data())
@settings(max_examples=150, deadline=None)
def test_reasoning_does_not_depend_on_how_the_text_was_cut(text, prefilled, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    parsers = [ThinkParser(TaggedParser(minimax_m2.TAGS, ()), prefilled=prefilled, call_open=minimax_m2.TAGS.open_block) for _ in range(2)]
    assert plain(run(parsers[0], *pieces)) == plain(run(parsers[1], text))


@pytest.mark.parametrize("value", ['["\\ud800"]', '{"\\udc00": 1}', "1e999", "[" * 300 + "]" * 300, "{'a': '\\ud800'}"])
def test_value_that_some_client_could_not_read_is_its_text(value):
    text = f"<tool_call>\n<function=f>\n<parameter=x>\n{value}\n</parameter>\n</function>\n</tool_call>"
    (call,) = parse("coder", text, tools=(tool(x={}),)).tool_calls
    assert json.loads(call.arguments) == {"x": value}
