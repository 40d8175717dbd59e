"""OpenAI Chat Completions (platform.openai.com/docs/api-reference/chat), streamed and plain.

Invariant: what a field means is either obeyed, or recorded and ignored, or refused with a 400 (several choices, images); never half done.
Reasoning travels as `reasoning_content`, and is read back from that, `reasoning` or `reasoning_text`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec

from openforge.gateway.dialects import sse
from openforge.gateway.dialects.base import ApiError, BadRequest, ReplyHead, Target
from openforge.gateway.dialects.fields import read_limit, read_object, read_string, read_strings
from openforge.gateway.reply import End, ReasoningDelta, Reply, ReplyEvent, TextDelta, ToolCallDelta, Usage
from openforge.gateway.turn import Message, Role, Tool, ToolCall, Turn
from openforge.types import FinishReason

ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
REASONING = ("reasoning_content", "reasoning", "reasoning_text")
"""Clients' names for it; the first is ours."""
KNOWN = {"role", "content", "name", "tool_call_id", "tool_calls", *REASONING}


class Chat:
    name = "chat"
    reply_paths: tuple[str, ...] = ("/v1/chat/completions",)
    count_paths: tuple[str, ...] = ()

    def read(self, body: dict[str, Any], target: Target) -> Turn:
        if body.get("n") not in (None, 1):
            raise BadRequest("'n' must be 1: every reply is one recorded sample; send several requests instead")
        if body.get("functions"):
            raise BadRequest("'functions' is not supported: declare them in 'tools'")
        fields = {key: value for key, value in body.items() if key not in ("messages", "tools")}
        return Turn(
            messages=read_messages(body.get("messages")),
            tools=read_tools(body.get("tools") or []),
            model=read_string(body, "model"),
            stream=bool(body.get("stream")),
            include_usage=bool((read_object(body.get("stream_options") or {}, "stream_options")).get("include_usage")),
            max_tokens=read_limit(body, ("max_completion_tokens", "max_tokens")),
            stop=read_strings(body.get("stop"), "'stop'"),
            fields=fields,
        )

    def whole(self, head: ReplyHead, turn: Turn, reply: Reply, end: End) -> dict[str, Any]:
        message = reply.message()
        row: dict[str, Any] = {"role": "assistant", "content": message.content or (None if message.tool_calls else "")}
        if message.reasoning:
            row["reasoning_content"] = message.reasoning
        if message.tool_calls:
            row["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.tool_calls
            ]
        choice = {"index": 0, "message": row, "finish_reason": _finish(end, called=bool(message.tool_calls)), "logprobs": None}
        return {**_head(head, "chat.completion"), "choices": [choice], "usage": _usage(end.usage)}

    def writer(self, head: ReplyHead, turn: Turn) -> ChatWriter:
        return ChatWriter(head, include_usage=turn.include_usage)

    def count(self, tokens: int) -> dict[str, Any]:
        raise AssertionError("the dialect counts no tokens")

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
                return self._text.fill(text)
            case ReasoningDelta(text):
                return self._reasoning.fill(text)
            case ToolCallDelta(index, id, name, arguments):
                self._called = True
                head = {} if id is None else {"id": id, "type": "function"}
                function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
                return self._chunk({"tool_calls": [{"index": index, **head, "function": function}]})

    @cached_property
    def _text(self) -> sse.Template:
        return sse.Template(lambda text: self._chunk({"content": text}))

    @cached_property
    def _reasoning(self) -> sse.Template:
        return sse.Template(lambda text: self._chunk({"reasoning_content": text}))

    def ping(self) -> bytes:
        return sse.COMMENT

    def close(self, end: End) -> bytes:
        last = self._chunk({}, _finish(end, called=self._called))
        if self._include_usage:
            last += sse.event({**self._head, "choices": [], "usage": _usage(end.usage)})
        return last + b"data: [DONE]\n\n"

    def fail(self, error: ApiError) -> bytes:
        return sse.event(Chat().error(error))

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        return sse.event({**self._head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]})


def read_messages(value: object) -> tuple[Message, ...]:
    """Chat messages as canonical ones. Raises BadRequest (a ValueError)."""
    if not isinstance(value, list) or not value:
        raise BadRequest("'messages' must be a non-empty array")
    return tuple(_message(read_object(row, f"messages[{i}]"), f"messages[{i}]") for i, row in enumerate(value))


def read_tools(value: object) -> tuple[Tool, ...]:
    """Chat tools as canonical ones. Raises BadRequest (a ValueError)."""
    if not isinstance(value, list):
        raise BadRequest("'tools' must be an array")
    return tuple(_tool(read_object(row, f"tools[{i}]"), f"tools[{i}]") for i, row in enumerate(value))


def _message(row: dict[str, Any], where: str) -> Message:
    name = read_string(row, "role", where)
    role = ROLES.get(name)
    if role is None:
        raise BadRequest(f"{where}.role: {name!r} is not one of: {', '.join(ROLES)}")
    calls = row.get("tool_calls") or []
    if not isinstance(calls, list) or (calls and role != "assistant"):
        raise BadRequest(f"{where}.tool_calls must be an array, in an assistant message")
    return Message(
        role=role,
        content=_text(row.get("content"), f"{where}.content"),
        reasoning=next((text for key in REASONING if (text := read_string(row, key, where))), ""),
        tool_calls=tuple(_tool_call(read_object(call, f"{where}.tool_calls"), f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)),
        tool_call_id=read_string(row, "tool_call_id", where) or None,
        name=read_string(row, "name", where) or None,
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
        kind = read_object(part, where).get("type", "text")
        if kind not in ("text", "refusal"):
            raise BadRequest(f"{where}: parts of type {kind!r} are not supported; only text is")
        texts.append(read_string(part, kind, where))
    return "\n".join(texts)


def _tool_call(row: dict[str, Any], where: str) -> ToolCall:
    if row.get("type", "function") != "function":
        raise BadRequest(f"{where}.type: only 'function' is supported")
    function = read_object(row.get("function"), f"{where}.function")
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else msgspec.json.encode({} if arguments is None else arguments).decode()
    return ToolCall(read_string(row, "id", where), read_string(function, "name", where), text)


def _tool(row: dict[str, Any], where: str) -> Tool:
    if row.get("type", "function") != "function":
        raise BadRequest(f"{where}.type: only 'function' is supported")
    function = read_object(row.get("function"), f"{where}.function")
    name = read_string(function, "name", where)
    if not name:
        raise BadRequest(f"{where}.function.name is missing")
    return Tool(
        name, read_string(function, "description", where), read_object(function.get("parameters") or {}, f"{where}.function.parameters")
    )


def _finish(end: End, *, called: bool) -> str:
    if end.finish == FinishReason.LENGTH:
        return "length"
    return "tool_calls" if called else "stop"


def _head(head: ReplyHead, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{head.id}", "object": kind, "created": int(head.created), "model": head.model}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.sampled_tokens,
        "total_tokens": usage.prompt_tokens + usage.sampled_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
