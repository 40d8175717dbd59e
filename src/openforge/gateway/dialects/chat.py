"""OpenAI Chat Completions (platform.openai.com/docs/api-reference/chat), streamed and plain.

Invariant: what a field means is either obeyed, or recorded and ignored, or refused with a 400 (several choices, images); never half done.
Reasoning travels as `reasoning_content`, and is read back from that or from `reasoning`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from openforge.gateway.dialects.base import ApiError, BadRequest, ReplyHead, Usage
from openforge.gateway.reply import ReasoningDelta, ReplyEvent, TextDelta, ToolCallDelta
from openforge.gateway.turn import Message, Role, Tool, ToolCall, Turn
from openforge.types import FinishReason

ROLES: dict[object, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
KNOWN = {"role", "content", "name", "tool_call_id", "tool_calls", "reasoning", "reasoning_content"}


class Chat:
    name = "chat"
    path = "/chat/completions"

    def read(self, body: dict[str, Any]) -> Turn:
        if body.get("n") not in (None, 1):
            raise BadRequest("'n' must be 1: every reply is one recorded sample; send several requests instead")
        fields = {key: value for key, value in body.items() if key not in ("messages", "tools")}
        return Turn(
            messages=read_messages(body.get("messages")),
            tools=read_tools(body.get("tools") or []),
            model=_string(body, "model"),
            stream=bool(body.get("stream")),
            include_usage=bool((_object(body.get("stream_options") or {}, "stream_options")).get("include_usage")),
            max_tokens=_max_tokens(body),
            stop=_stop(body.get("stop")),
            fields=fields,
        )

    def whole(self, head: ReplyHead, message: Message, finish: FinishReason, usage: Usage) -> dict[str, Any]:
        row: dict[str, Any] = {"role": "assistant", "content": message.content or (None if message.tool_calls else "")}
        if message.reasoning:
            row["reasoning_content"] = message.reasoning
        if message.tool_calls:
            row["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.tool_calls
            ]
        choice = {"index": 0, "message": row, "finish_reason": _finish(finish, called=bool(message.tool_calls)), "logprobs": None}
        return {**_head(head, "chat.completion"), "choices": [choice], "usage": _usage(usage)}

    def writer(self, head: ReplyHead, turn: Turn) -> ChatWriter:
        return ChatWriter(head, include_usage=turn.include_usage)

    def error(self, error: ApiError) -> dict[str, Any]:
        return {"error": {"message": error.message, "type": error.type, "param": None, "code": error.code}}


class ChatWriter:
    """Server-sent events of one streamed reply."""

    def __init__(self, head: ReplyHead, *, include_usage: bool) -> None:
        self._head = _head(head, "chat.completion.chunk")
        self._include_usage = include_usage
        self._called = False

    def open(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def delta(self, event: ReplyEvent) -> bytes:
        match event:
            case TextDelta(text):
                return self._chunk({"content": text})
            case ReasoningDelta(text):
                return self._chunk({"reasoning_content": text})
            case ToolCallDelta(index, id, name, arguments):
                self._called = True
                head = {} if id is None else {"id": id, "type": "function"}
                function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
                return self._chunk({"tool_calls": [{"index": index, **head, "function": function}]})

    def close(self, finish: FinishReason, usage: Usage) -> bytes:
        end = self._chunk({}, _finish(finish, called=self._called))
        if self._include_usage:
            end += _event({**self._head, "choices": [], "usage": _usage(usage)})
        return end + b"data: [DONE]\n\n"

    def fail(self, error: ApiError) -> bytes:
        return _event(Chat().error(error))

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        return _event({**self._head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]})


def read_messages(value: object) -> tuple[Message, ...]:
    """Chat messages as canonical ones. Raises BadRequest (a ValueError)."""
    if not isinstance(value, list) or not value:
        raise BadRequest("'messages' must be a non-empty array")
    return tuple(_message(_object(row, f"messages[{i}]"), f"messages[{i}]") for i, row in enumerate(value))


def read_tools(value: object) -> tuple[Tool, ...]:
    """Chat tools as canonical ones. Raises BadRequest (a ValueError)."""
    if not isinstance(value, list):
        raise BadRequest("'tools' must be an array")
    return tuple(_tool(_object(row, f"tools[{i}]"), f"tools[{i}]") for i, row in enumerate(value))


def _message(row: dict[str, Any], where: str) -> Message:
    role = ROLES.get(row.get("role"))
    if role is None:
        raise BadRequest(f"{where}.role: {row.get('role')!r} is not one of: {', '.join(map(str, ROLES))}")
    calls = row.get("tool_calls") or []
    if not isinstance(calls, list) or (calls and role != "assistant"):
        raise BadRequest(f"{where}.tool_calls must be an array, in an assistant message")
    return Message(
        role=role,
        content=_text(row.get("content"), f"{where}.content"),
        reasoning=_string(row, "reasoning_content", where) or _string(row, "reasoning", where),
        tool_calls=tuple(_tool_call(_object(call, f"{where}.tool_calls"), f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)),
        tool_call_id=_string(row, "tool_call_id", where) or None,
        name=_string(row, "name", where) or None,
        extra={key: value for key, value in row.items() if key not in KNOWN and value is not None},
    )


def _text(value: object, where: str) -> str:
    """A string, or text parts joined by newlines."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise BadRequest(f"{where} must be a string, null or an array of text parts")
    texts = []
    for part in value:
        kind = _object(part, where).get("type", "text")
        if kind not in ("text", "refusal"):
            raise BadRequest(f"{where}: parts of type {kind!r} are not supported; only text is")
        texts.append(_string(part, kind, where))
    return "\n".join(texts)


def _tool_call(row: dict[str, Any], where: str) -> ToolCall:
    if row.get("type", "function") != "function":
        raise BadRequest(f"{where}.type: only 'function' is supported")
    function = _object(row.get("function"), f"{where}.function")
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else msgspec.json.encode({} if arguments is None else arguments).decode()
    return ToolCall(_string(row, "id", where), _string(function, "name", where), text)


def _tool(row: dict[str, Any], where: str) -> Tool:
    if row.get("type", "function") != "function":
        raise BadRequest(f"{where}.type: only 'function' is supported")
    function = _object(row.get("function"), f"{where}.function")
    name = _string(function, "name", where)
    if not name:
        raise BadRequest(f"{where}.function.name is missing")
    return Tool(name, _string(function, "description", where), _object(function.get("parameters") or {}, f"{where}.function.parameters"))


def _max_tokens(body: dict[str, Any]) -> int | None:
    limits = [body[key] for key in ("max_completion_tokens", "max_tokens") if body.get(key) is not None]
    if not all(isinstance(limit, int) and not isinstance(limit, bool) and limit > 0 for limit in limits):
        raise BadRequest("'max_tokens' must be a positive integer")
    return min(limits, default=None)


def _stop(value: object) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value if value is not None else []
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise BadRequest("'stop' must be a string or an array of strings")
    return tuple(stop for stop in stops if stop)


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest(f"{where} must be an object")
    return value


def _string(row: dict[str, Any], key: str, where: str = "") -> str:
    value = row.get(key)
    if value is not None and not isinstance(value, str):
        raise BadRequest(f"{where}{'.' if where else ''}{key} must be a string")
    return value or ""


def _finish(finish: FinishReason, *, called: bool) -> str:
    if finish == FinishReason.LENGTH:
        return "length"
    return "tool_calls" if called else "stop"


def _head(head: ReplyHead, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{head.id}", "object": kind, "created": int(head.created), "model": head.model}


def _usage(usage: Usage) -> dict[str, int]:
    total = usage.prompt_tokens + usage.sampled_tokens
    return {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.sampled_tokens, "total_tokens": total}


def _event(payload: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"
