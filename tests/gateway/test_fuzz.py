"""Bodies as no client should send them, over real HTTP: never a 500, never silence, nothing left behind."""

from __future__ import annotations

import copy
import json

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openforge.gateway.dialects import DIALECTS

CLIENT = httpx.Client()
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ARGUMENTS = '{"a": 1}'
SEEDS = {
    "chat": {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be good."},
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": ARGUMENTS}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ],
        "tools": [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": SCHEMA}}],
        "stream_options": {"include_usage": True},
        "max_tokens": 9,
        "stop": ["x"],
        "n": 1,
    },
    "responses": {
        "model": "m",
        "instructions": "Be good.",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            {"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x"},
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": ARGUMENTS},
            {"type": "function_call_output", "call_id": "c1", "output": "3"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "x"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "3"}]},
        ],
        "tools": [
            {"type": "function", "name": "add", "description": "adds", "parameters": SCHEMA},
            {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
            {"type": "namespace", "name": "group", "tools": [{"type": "function", "name": "add", "parameters": SCHEMA}]},
        ],
        "max_output_tokens": 9,
    },
    "messages": {
        "model": "m",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "Be good.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "hello"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "x"},
                    {"type": "text", "text": "Both."},
                    {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "3"}]}]},
        ],
        "tools": [{"name": "add", "description": "adds", "input_schema": SCHEMA}],
        "stop_sequences": ["x"],
    },
    "gemini": {
        "systemInstruction": {"parts": [{"text": "Be good."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "hello"}]},
            {
                "role": "model",
                "parts": [
                    {"text": "hm", "thought": True},
                    {"functionCall": {"id": "c1", "name": "add", "args": {"a": 1}}, "thoughtSignature": "eA=="},
                ],
            },
            {"role": "user", "parts": [{"functionResponse": {"id": "c1", "name": "add", "response": {"output": "3"}}}, {"text": "go on"}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "add", "parameters": {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}}]}],
        "generationConfig": {"maxOutputTokens": 9, "stopSequences": ["x"], "thinkingConfig": {"includeThoughts": True}},
    },
}  # fmt: skip
"""A valid body of each dialect, with every construct it reads."""


def nested(depth):
    return [] if depth == 0 else {"": nested(depth - 1)} if depth % 2 else [nested(depth - 1)]


JUNK = st.one_of(
    st.sampled_from([None, True, 0, -1, 1.5, 10**30, -(10**400), float("nan"), float("inf")]),
    st.sampled_from(["", "\ud83d", "<|im_end|>", "\x00", [], {}, [[]], [None], {"type": "text"}]),
    st.sampled_from([90, 200]).map(nested),
    st.text(max_size=5),
    st.dictionaries(st.text(max_size=3), st.none() | st.integers(), max_size=2),
).map(copy.deepcopy)  # what is added to a drawn object must not be there in the next draw


def places(value, path=()):
    """Where something stands in a body."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inside:
        yield (*path, key)
        yield from places(child, (*path, key))


@st.composite
def bodies(draw, seed):
    body = json.loads(json.dumps(seed))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(body)) or [()]))
        if not path:
            break
        row = body
        for key in path[:-1]:
            row = row[key]
        match draw(st.sampled_from(["replace", "delete", "wrap", "repeat", "add"])):
            case "replace":
                row[path[-1]] = draw(JUNK)
            case "delete":
                del row[path[-1]]
            case "wrap":
                row[path[-1]] = [row[path[-1]]]
            case "repeat":
                row[path[-1]] = [row[path[-1]]] * 2
            case "add" if isinstance(row, dict):
                row[draw(st.text(max_size=3))] = draw(JUNK)
    return body


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_valid_body_is_answered(running_house, dialect):
    for path in (*dialect.reply_paths, *dialect.count_paths):
        assert send(running_house, path, SEEDS[dialect.name]).status_code == 200


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_body_gets_a_clean_answer_and_leaves_nothing_behind(running_house, dialect, data):
    path = data.draw(st.sampled_from((*dialect.reply_paths, *dialect.count_paths)))
    body = data.draw(bodies(SEEDS[dialect.name]))
    if data.draw(st.booleans()):
        body["stream"] = True
    answer = send(running_house, path, body)
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert answer.json()["error"]["message"]
    running_house.wait(running_house.rest())
    for call in running_house.house.log.calls:
        msgspec.json.encode(call.request)
    running_house.house.log.calls.clear()
    assert running_house.house.gateway.fault is None


def send(running, path, body):
    url = f"{running.address}/r/fuzz{path.replace('{model:path}', 'm')}{'?alt=sse' if 'stream' in path else ''}"
    return CLIENT.post(url, content=json.dumps(body), timeout=30)
