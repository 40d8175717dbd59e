"""Anthropic Messages (platform.claude.com/docs/en/api/messages), streamed and plain, and its `count_tokens`.

Invariant: a plain reply holds the blocks a streamed one adds up to. In a stream every delta belongs to the one block that is open, block
indices rise by one, and a block's type is fixed when it starts.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec

from openforge.gateway.dialects import sse
from openforge.gateway.dialects.base import ApiError, BadRequest, ReplyHead, Target
from openforge.gateway.dialects.messages_read import read_turn
from openforge.gateway.reply import End, ReasoningDelta, Reply, ReplyEvent, ReplyPart, TextDelta, ToolCallDelta, Usage
from openforge.gateway.turn import ToolCall, Turn
from openforge.types import FinishReason

ERRORS = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class Messages:
    name = "messages"
    reply_paths: tuple[str, ...] = ("/v1/messages",)
    count_paths: tuple[str, ...] = ("/v1/messages/count_tokens",)

    def read(self, body: dict[str, Any], target: Target) -> Turn:
        turn = read_turn(body)
        if turn.messages[-1].role == "assistant" and target.path in self.reply_paths:
            raise BadRequest("'messages' must not end with an assistant message: the model cannot go on from words it did not sample")
        return turn

    def whole(self, head: ReplyHead, turn: Turn, reply: Reply, end: End) -> dict[str, Any]:
        parts = reply.parts()
        return {
            **_message(head, turn),
            "content": [_block(part, head) for part in parts],
            **_stop(end, turn, called=any(isinstance(part, ToolCall) for part in parts)),
            "usage": _usage(end.usage),
        }

    def writer(self, head: ReplyHead, turn: Turn) -> MessagesWriter:
        return MessagesWriter(head, turn)

    def count(self, tokens: int) -> dict[str, Any]:
        return {"input_tokens": tokens}

    def error(self, error: ApiError) -> dict[str, Any]:
        # Claude Code compacts its history when it reads these words.
        too_long = "prompt is too long: " if error.code == "context_length_exceeded" else ""
        type = ERRORS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        return {"type": "error", "error": {"type": type, "message": too_long + error.message}}


class MessagesWriter:
    """Server-sent events of one streamed reply."""

    def __init__(self, head: ReplyHead, turn: Turn) -> None:
        self._head = head
        self._turn = turn
        self._open: type[ReplyEvent] | int | None = None
        """What the open block holds: a kind of text, or the call of this number."""
        self._index = -1
        """Of the block that was started last."""
        self._called = False

    def open(self) -> bytes:
        stop = {"stop_reason": None, "stop_sequence": None}
        message = {**_message(self._head, self._turn), "content": [], **stop, "usage": _usage(self._head.usage)}
        return _event("message_start", message=message)

    def delta(self, event: ReplyEvent) -> bytes:
        match event:
            case TextDelta(text):
                return self._enter(TextDelta, event) + self._piece("text_delta", text=text)
            case ReasoningDelta(text):
                return self._enter(ReasoningDelta, event) + self._piece("thinking_delta", thinking=text)
            case ToolCallDelta(index, arguments=arguments):
                self._called = True
                started = self._enter(index, event)
                return started + self._piece("input_json_delta", partial_json=arguments) if arguments else started

    def ping(self) -> bytes:
        return _event("ping")

    def close(self, end: End) -> bytes:
        stop = _stop(end, self._turn, called=self._called)
        return self._leave() + _event("message_delta", delta=stop, usage=_usage(end.usage)) + _event("message_stop")

    def fail(self, error: ApiError) -> bytes:
        return sse.event(Messages().error(error), "error")

    def _enter(self, holds: type[ReplyEvent] | int, event: ReplyEvent) -> bytes:
        """Make sure that the open block is the one for `event`."""
        if holds == self._open:
            return b""
        left = self._leave()
        self._open = holds
        self._index += 1
        return left + _event("content_block_start", index=self._index, content_block=_empty(event))

    def _leave(self) -> bytes:
        if self._open is None:
            return b""
        signed = self._piece("signature_delta", signature=_signature(self._head)) if self._open is ReasoningDelta else b""
        self._open = None
        return signed + _event("content_block_stop", index=self._index)

    def _piece(self, type: str, **delta: str) -> bytes:
        return _event("content_block_delta", index=self._index, delta={"type": type, **delta})


def _event(type: str, **fields: Any) -> bytes:
    return sse.event({"type": type, **fields}, type)


def _message(head: ReplyHead, turn: Turn) -> dict[str, Any]:
    return {"id": f"msg_{head.id}", "type": "message", "role": "assistant", "model": turn.model or head.model}


def _empty(event: ReplyEvent) -> dict[str, Any]:
    """A block before its first delta."""
    match event:
        case TextDelta():
            return {"type": "text", "text": ""}
        case ReasoningDelta():
            return {"type": "thinking", "thinking": "", "signature": ""}
        case ToolCallDelta(id=id, name=name):
            assert id is not None, "a call's first delta names it, and calls follow one another"
            return {"type": "tool_use", "id": id, "name": name, "input": {}}


def _block(part: ReplyPart, head: ReplyHead) -> dict[str, Any]:
    match part:
        case TextDelta(text):
            return {"type": "text", "text": text}
        case ReasoningDelta(text):
            return {"type": "thinking", "thinking": text, "signature": _signature(head)}
        case ToolCall(id, name, arguments):
            return {"type": "tool_use", "id": id, "name": name, "input": _input(arguments)}


def _input(arguments: str) -> object:
    """A call's arguments just as the model wrote them; an empty object for what an API of text cut short."""
    try:
        whole = isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        whole = False
    return msgspec.Raw(arguments.encode()) if whole else {}


def _signature(head: ReplyHead) -> str:
    """Opaque to clients, who give it back with the thoughts: the call's id."""
    return base64.b64encode(bytes.fromhex(head.id)).decode()


def _stop(end: End, turn: Turn, *, called: bool) -> dict[str, Any]:
    if end.stop is not None and end.stop in turn.stop:
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stop}
    if end.finish == FinishReason.LENGTH:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    return {"stop_reason": "tool_use" if called else "end_turn", "stop_sequence": None}


def _usage(usage: Usage) -> dict[str, Any]:
    """Anthropic's `input_tokens` leave out those read from a cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": usage.sampled_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "service_tier": "standard",
    }
