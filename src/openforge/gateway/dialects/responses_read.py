"""Reads a request of the OpenAI Responses API into a turn.

Invariant: the items of one reply become one assistant message again, however it came in: streamed or plain, with ids or without. Nothing a
model would have read is dropped: what only a server that keeps responses could look up, and what is not text, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from openforge.gateway.dialects.base import BadRequest
from openforge.gateway.dialects.fields import read_array, read_limit, read_object, read_string, read_strings
from openforge.gateway.dialects.responses_tools import read_tools, shown_name, wrap_input
from openforge.gateway.turn import Message, Role, ToolCall, Turn

ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
CALLS = ("function_call", "custom_tool_call")
KEPT_ELSEWHERE = ("previous_response_id", "conversation", "prompt")
"""Fields by which a request refers to what only OpenAI's servers hold."""
KNOWN = {"type", "id", "role", "status", "content", "summary", "name", "namespace", "arguments", "input", "call_id", "output"}

_OWN_ID = re.compile(r"(?:rs|msg|fc|ctc)_([0-9a-f]{32})_\d+")

Item = dict[str, Any]


def read_turn(body: dict[str, Any]) -> Turn:
    """Raises BadRequest."""
    for key in KEPT_ELSEWHERE:
        if body.get(key) is not None:
            raise BadRequest(f"'{key}' is not supported: nothing is kept between requests; send the whole conversation in 'input'")
    if body.get("background"):
        raise BadRequest("'background' is not supported: nothing is kept between requests; stream the response instead")
    read_strings(body.get("include"), "'include'")
    messages, unread = _messages(body.get("input"))
    if instructions := read_string(body, "instructions"):
        messages.insert(0, Message("system", instructions))
    tools, others = read_tools(body.get("tools") or [])
    fields = {key: value for key, value in body.items() if key not in ("instructions", "input", "tools")}
    if unread:
        fields["items_not_rendered"] = unread
    if others:
        fields["tools_not_offered"] = others
    return Turn(
        messages=tuple(messages),
        tools=tools,
        model=read_string(body, "model"),
        stream=bool(body.get("stream")),
        max_tokens=read_limit(body, ("max_output_tokens",)),
        fields=fields,
    )


def _messages(value: object) -> tuple[list[Message], list[Item]]:
    """The conversation, and for the record the items in which nothing is lost to the model."""
    if isinstance(value, str):
        return [Message("user", value)], []
    messages: list[Message] = []
    unread: list[Item] = []
    before: Item = {}
    for i, row in enumerate(read_array(value, "'input', if not a string,")):
        item, where = read_object(row, f"input[{i}]"), f"input[{i}]"
        kind = _kind(item, where)
        if _unread(item, kind):
            unread.append(item)
            continue
        read = _READERS.get(kind)
        if read is None:
            raise BadRequest(f"{where}: items of type {kind!r} are not supported; what they hold would be lost to the model")
        message = read(item, where)
        if message.role == "assistant" and messages and messages[-1].role == "assistant" and _one_reply(before, item, kind, messages[-1]):
            messages[-1] = _join(messages[-1], message)
        else:
            messages.append(message)
        before = item
    if not messages:
        raise BadRequest("'input' must not be empty")
    return messages, unread


def _kind(item: Item, where: str) -> str:
    return read_string(item, "type", where) or ("message" if "role" in item else "item_reference")


def _unread(item: Item, kind: str) -> bool:
    """A search that OpenAI's servers ran, or a pointer to reasoning: the store of replies has it."""
    return kind == "web_search_call" or (kind == "item_reference" and str(item.get("id")).startswith("rs_"))


def _one_reply(before: Item, item: Item, kind: str, message: Message) -> bool:
    """Whether an item belongs to the assistant message made of those before it: ids of ours tell, and without them the order does."""
    owners = [_OWN_ID.fullmatch(str(each.get("id"))) for each in (before, item)]
    if owners[0] and owners[1]:
        return owners[0][1] == owners[1][1]
    return kind in CALLS or not (message.content or message.tool_calls)


def _join(first: Message, second: Message) -> Message:
    # Nothing between the texts: they are what a reply was cut into by the calls in it.
    return Message(
        "assistant",
        first.content + second.content,
        first.reasoning + second.reasoning,
        (*first.tool_calls, *second.tool_calls),
        extra={**first.extra, **second.extra},
    )


def _message(item: Item, where: str) -> Message:
    role = ROLES.get(read_string(item, "role", where))
    if role is None:
        raise BadRequest(f"{where}.role: {item.get('role')!r} is not one of: {', '.join(ROLES)}")
    return Message(role, _text(item.get("content"), f"{where}.content", "" if role == "assistant" else "\n"), extra=_extra(item))


def _reasoning(item: Item, where: str) -> Message:
    """The reasoning itself where the item has it, else its summary, which is all of it in what we send."""
    key = "content" if item.get("content") else "summary"
    where = f"{where}.{key}"
    texts = [read_string(read_object(part, where), "text", where) for part in read_array(item.get(key) or [], where)]
    return Message("assistant", reasoning="\n\n".join(texts), extra=_extra(item))


def _function_call(item: Item, where: str) -> Message:
    arguments = item.get("arguments")
    text = arguments if isinstance(arguments, str) else msgspec.json.encode({} if arguments is None else arguments).decode()
    return _call(item, where, text)


def _custom_tool_call(item: Item, where: str) -> Message:
    return _call(item, where, wrap_input(read_string(item, "input", where)))


def _call(item: Item, where: str, arguments: str) -> Message:
    name = read_string(item, "name", where)
    if not name:
        raise BadRequest(f"{where}.name is missing")
    shown = shown_name(name, read_string(item, "namespace", where) or None)
    return Message("assistant", tool_calls=(ToolCall(read_string(item, "call_id", where), shown, arguments),), extra=_extra(item))


def _output(item: Item, where: str) -> Message:
    text = _text(item.get("output"), f"{where}.output", "\n")
    return Message("tool", text, tool_call_id=read_string(item, "call_id", where) or None, extra=_extra(item))


_READERS: dict[str, Callable[[Item, str], Message]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "custom_tool_call": _custom_tool_call,
    "function_call_output": _output,
    "custom_tool_call_output": _output,
}


def _text(value: object, where: str, separator: str) -> str:
    """A string, or what text parts say."""
    if value is None or isinstance(value, str):
        return value or ""
    texts = []
    for i, part in enumerate(read_array(value, f"{where}, if not a string,")):
        kind = read_string(read_object(part, f"{where}[{i}]"), "type", f"{where}[{i}]")
        if kind not in TEXT_PARTS:
            raise BadRequest(f"{where}[{i}]: parts of type {kind!r} are not supported: the model is text-only")
        texts.append(read_string(part, TEXT_PARTS[kind], f"{where}[{i}]"))
    return separator.join(texts)


def _extra(item: Item) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in KNOWN and value is not None}
