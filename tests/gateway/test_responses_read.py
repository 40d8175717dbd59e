"""Items of the Responses API as messages, and its tools as canonical ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openforge.gateway.dialects.responses_read import read_turn
from openforge.gateway.dialects.responses_tools import read_tools, unwrap_input, wrap_input, write_tools
from openforge.gateway.turn import Message, ToolCall, canonical_arguments

HELLO = {"role": "user", "content": "hello"}


def read(*items: dict[str, Any], **body: Any) -> tuple[Message, ...]:
    return read_turn({"input": list(items), **body}).messages


def text(words: str, id: str | None = None) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": words}], **({"id": id} if id else {})}


def thought(words: str, id: str | None = None) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": words}], **({"id": id} if id else {})}


def call(call_id: str, id: str | None = None) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "add", "arguments": "{}", **({"id": id} if id else {})}


def result(call_id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": "3"}


def shape(messages: tuple[Message, ...]) -> list[tuple[str, str, str, int]]:
    return [(m.role, m.reasoning, m.content, len(m.tool_calls)) for m in messages]


def test_the_items_of_one_reply_are_one_message():
    messages = read(HELLO, thought("hm"), text("Both."), call("a"), call("b"), result("a"), result("b"))
    assert shape(messages) == [("user", "", "hello", 0), ("assistant", "hm", "Both.", 2), ("tool", "", "3", 0), ("tool", "", "3", 0)]


def test_without_ids_reasoning_or_a_message_behind_a_call_begins_a_new_message():
    messages = read(HELLO, call("a"), thought("hm"), call("b"), text("x"), text("y"))
    assert [entry[1:] for entry in shape(messages)[1:]] == [("", "", 1), ("hm", "", 1), ("", "x", 0), ("", "y", 0)]


def test_our_ids_tell_replies_apart_and_keep_each_together():
    one, two = "a" * 32, "b" * 32
    messages = read(HELLO, text("x", f"msg_{one}_0"), call("a", f"fc_{one}_1"), text("y", f"msg_{one}_2"), call("b", f"fc_{two}_0"))
    assert [entry[1:] for entry in shape(messages)[1:]] == [("", "xy", 1), ("", "", 1)]


def test_empty_reasoning_is_no_reason_for_a_message_of_its_own():
    assert shape(read(HELLO, {"type": "reasoning", "summary": []}, text("x")))[1:] == [("assistant", "", "x", 0)]


def test_reasoning_text_comes_before_its_summary():
    item = {**thought("short"), "content": [{"type": "reasoning_text", "text": "long"}]}
    assert read(HELLO, item)[1].reasoning == "long"


def test_results_may_be_text_parts():
    item = {**result("a"), "output": [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}]}
    assert read(HELLO, call("a"), item)[2] == Message("tool", "x\ny", tool_call_id="a")


def test_a_refusal_is_what_the_model_said():
    assert read(HELLO, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]})[1].content == "No."


def test_items_in_which_the_model_loses_nothing_are_recorded_and_passed_over():
    search, pointer = {"type": "web_search_call", "id": "ws_1"}, {"type": "item_reference", "id": "rs_1"}
    turn = read_turn({"input": [HELLO, search, pointer, text("x")]})
    assert shape(turn.messages) == [("user", "", "hello", 0), ("assistant", "", "x", 0)]
    assert turn.fields["items_not_rendered"] == [search, pointer]


def test_fields_of_items_that_no_format_renders_are_kept_for_the_record():
    assert read({**HELLO, "phase": "commentary", "status": "completed"})[0].extra == {"phase": "commentary"}


def test_calls_carry_the_names_and_arguments_the_model_wrote():
    items = [
        {"type": "function_call", "call_id": "a", "namespace": "crm", "name": "find", "arguments": '{"x": 1}'},
        {"type": "custom_tool_call", "call_id": "b", "name": "patch", "input": 'say "é"'},
    ]
    assert read(HELLO, *items)[1].tool_calls == (ToolCall("a", "crm__find", '{"x": 1}'), ToolCall("b", "patch", '{"input": "say \\"é\\""}'))


def test_a_nameless_tool_of_a_server_is_recorded_and_not_offered():
    tools, others = read_tools([{"type": "web_search"}, {"type": "local_shell"}, {"type": "function", "name": "add"}])
    assert [tool.name for tool in tools] == ["add"]
    assert [row["type"] for row in others] == ["web_search", "local_shell"]


names = st.text("ab_", min_size=1, max_size=3)
members = st.fixed_dictionaries(
    {"type": st.sampled_from(["function", "custom"]), "name": names},
    optional={"description": names, "parameters": st.just({"type": "object"})},
)
namespaces = st.fixed_dictionaries(
    {"type": st.just("namespace"), "name": names.map(lambda name: f"{name}.ns"), "tools": st.lists(members, max_size=2)},
    optional={"description": names},
)


@given(st.lists(members | namespaces, max_size=4, unique_by=lambda row: row["name"]))
@settings(max_examples=50, deadline=None)
def test_tools_that_are_written_read_as_the_same(rows):
    for row in rows:
        row["tools"] = list({tool["name"]: tool for tool in row.get("tools", [])}.values())
    tools, _ = read_tools(rows)
    assert read_tools(write_tools(tools))[0] == tools


@given(st.text())
@settings(max_examples=50, deadline=None)
def test_freeform_text_survives_being_wrapped(words):
    assert unwrap_input(wrap_input(words)) == words


@pytest.mark.parametrize("arguments", ['{"input": "x"}', '{"input":""}', '{"patch": "x"}', "{}", '{"input": 3}'])
def test_a_freeform_call_that_comes_back_is_the_one_that_was_made(arguments):
    assert canonical_arguments(wrap_input(unwrap_input(arguments))) == canonical_arguments(arguments)
