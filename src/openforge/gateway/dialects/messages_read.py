"""Reads a request of the Anthropic Messages API into a turn.

Invariant: the same conversation reads as the same messages, however a client packs it (a string or blocks, with or without
`cache_control`, empty blocks beside others), and no text beside a tool result becomes a user message unless a user wrote it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from openforge.gateway.dialects.base import BadRequest
from openforge.gateway.dialects.fields import read_array, read_limit, read_object, read_string, read_strings
from openforge.gateway.turn import Message, Tool, ToolCall, Turn

ROLES = ("user", "assistant", "system")
NOT_TEXT = ("image", "document", "search_result")
SEPARATOR = "\n\n"
"""Between the texts of one system prompt, user message or tool result."""

_REMINDERS = re.compile(r"(?:\s*+<system-reminder>(?:[^<]++|<(?!/system-reminder>))*+</system-reminder>)++\s*+")
"""Possessive throughout: linear in the text, whatever a client sends."""

Block = dict[str, Any]


def read_turn(body: dict[str, Any]) -> Turn:
    """Raises BadRequest."""
    tools, others = _tools(body.get("tools") or [])
    fields = {key: value for key, value in body.items() if key not in ("system", "messages", "tools")}
    if others:
        fields["tools_not_offered"] = others
    return Turn(
        messages=(*_system(body.get("system"), "system"), *_messages(body.get("messages"))),
        tools=tools,
        model=read_string(body, "model"),
        stream=bool(body.get("stream")),
        max_tokens=read_limit(body, ("max_tokens",)),
        stop=read_strings(body.get("stop_sequences"), "'stop_sequences'"),
        fields=fields,
    )


def _system(value: object, where: str) -> list[Message]:
    """The system prompt; each of its blocks stays a paragraph of its own."""
    text, extra = _text(_blocks(value, where))
    return [Message("system", text, extra=extra)] if text else []


def _messages(value: object) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise BadRequest("'messages' must be a non-empty array")
    messages: list[Message] = []
    for i, item in enumerate(value):
        row, where = read_object(item, f"messages[{i}]"), f"messages[{i}].content"
        blocks = _blocks(row.get("content"), where)
        match row.get("role"):
            case "user":
                messages += _user(blocks)
            case "assistant":
                messages.append(_assistant(blocks))
            case "system":
                messages += _system(row.get("content"), where)
            case role:
                raise BadRequest(f"messages[{i}].role: {role!r} is not one of: {', '.join(ROLES)}")
    if not messages:
        raise BadRequest("'messages' must not consist of empty system messages alone")
    return messages


def _user(blocks: list[tuple[str, Block]]) -> list[Message]:
    """Tool results in their order, then what the user says beside them.

    Reminders that an agent puts beside tool results go into the result before them (or else the first): many templates drop all earlier
    reasoning at a user message, and the prompt would fork in the middle of a task.
    """
    if not any(block.get("type") == "tool_result" for _, block in blocks):
        text, extra = _text(blocks)
        return [Message("user", text, extra=extra)]
    results: list[tuple[str, Block, list[tuple[str, Block]]]] = []
    early: list[tuple[str, Block]] = []
    said: list[tuple[str, Block]] = []
    for where, block in blocks:
        if block.get("type") == "tool_result":
            results.append((where, block, [*early, *_blocks(block.get("content"), f"{where}.content")]))
            early = []
        elif block.get("type") != "text" or _REMINDERS.fullmatch(read_string(block, "text", where)):
            (results[-1][2] if results else early).append((where, block))
        else:
            said.append((where, block))
    text, _ = _text(said)
    messages = [_result(*result) for result in results]
    return [*messages, Message("user", text)] if text else messages


def _result(where: str, block: Block, content: list[tuple[str, Block]]) -> Message:
    text, extra = _text(content)
    if block.get("is_error"):
        extra["is_error"] = True
    return Message("tool", text, tool_call_id=read_string(block, "tool_use_id", where) or None, extra=extra)


def _assistant(blocks: list[tuple[str, Block]]) -> Message:
    texts, thoughts, calls = [], [], []
    extra: dict[str, Any] = {}
    for where, block in blocks:
        match block.get("type"):
            case "text":
                texts.append(read_string(block, "text", where))
            case "thinking":
                thoughts.append(read_string(block, "thinking", where))
                if signature := read_string(block, "signature", where):
                    extra["signature"] = signature
            case "tool_use":
                input = read_object(block.get("input") or {}, f"{where}.input")
                arguments = json.dumps(input, ensure_ascii=False)
                calls.append(ToolCall(read_string(block, "id", where), read_string(block, "name", where), arguments))
            case _:
                extra.setdefault("blocks", []).append(block)
    # Nothing between the texts: they are what a reply was cut into by the calls in it.
    return Message("assistant", "".join(texts), "".join(thoughts), tuple(calls), extra=extra)


def _blocks(value: object, where: str) -> list[tuple[str, Block]]:
    """Content as blocks, each with its place for error messages."""
    if value is None:
        return []
    if isinstance(value, str):
        return [(where, {"type": "text", "text": value})]
    if not isinstance(value, list):
        raise BadRequest(f"{where} must be a string or an array of blocks")
    return list(_checked(value, where))


def _checked(items: list[Any], where: str) -> Iterator[tuple[str, Block]]:
    for i, item in enumerate(items):
        block = read_object(item, f"{where}[{i}]")
        if block.get("type") in NOT_TEXT:
            raise BadRequest(f"{where}[{i}]: {block['type']!r} blocks are not supported: the model is text-only")
        yield f"{where}[{i}]", block


def _text(blocks: list[tuple[str, Block]]) -> tuple[str, dict[str, Any]]:
    """What the text blocks say, and for the record the others: clients send markers of features that no model has to see."""
    texts = [read_string(block, "text", where) for where, block in blocks if block.get("type") == "text"]
    others = [block for _, block in blocks if block.get("type") != "text"]
    return SEPARATOR.join(text for text in texts if text.strip()), {"blocks": others} if others else {}


def _tools(value: object) -> tuple[tuple[Tool, ...], list[Block]]:
    """The tools a client runs itself, and for the record those that Anthropic's servers would run or whose schema only its models know."""
    tools, others = [], []
    for i, item in enumerate(read_array(value, "tools")):
        row, where = read_object(item, f"tools[{i}]"), f"tools[{i}]"
        if row.get("type") not in (None, "custom"):
            others.append(row)
            continue
        name = read_string(row, "name", where)
        if not name:
            raise BadRequest(f"{where}.name is missing")
        schema = read_object(row.get("input_schema") or {}, f"{where}.input_schema")
        tools.append(Tool(name, read_string(row, "description", where), schema))
    return tuple(tools), others
