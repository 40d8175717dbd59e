"""OpenAI Responses API (platform.openai.com/docs/api-reference/responses), streamed and plain; stateless, as Codex uses it.

Invariant: a plain response is the one that a streamed one ends with. In a stream every item is added before anything is said of it and done
before the next is added, `sequence_number` rises by one, and exactly one terminal event comes, also when the call fails.
"""

from __future__ import annotations

from typing import Any

from openforge.gateway.dialects import sse
from openforge.gateway.dialects.base import ApiError, ReplyHead, Target
from openforge.gateway.dialects.responses_items import Event, ItemMaker, OutputItem
from openforge.gateway.dialects.responses_read import read_turn
from openforge.gateway.dialects.responses_tools import write_tools
from openforge.gateway.reply import End, Reply, ReplyEvent, ToolCallDelta, Usage
from openforge.gateway.turn import Turn
from openforge.types import FinishReason

ECHOED = {
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "prompt_cache_key": None,
    "reasoning": None,
    "safety_identifier": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "truncation": "disabled",
    "user": None,
}
"""Fields of a request that its response repeats, with their values where the client sent none."""


class Responses:
    name = "responses"
    reply_paths: tuple[str, ...] = ("/v1/responses",)
    count_paths: tuple[str, ...] = ("/v1/responses/input_tokens",)

    def read(self, body: dict[str, Any], target: Target) -> Turn:
        return read_turn(body)

    def whole(self, head: ReplyHead, turn: Turn, reply: Reply, end: End) -> dict[str, Any]:
        maker = ItemMaker(head, turn)
        items: list[OutputItem] = []
        for event in reply.events():
            items.append(maker.make(event))
            items[-1].add(_text(event))
        status = _status(end)
        output = [item.row("completed") for item in items[:-1]] + [item.row(status) for item in items[-1:]]
        return _response(head, turn, status, output, usage=end.usage)

    def writer(self, head: ReplyHead, turn: Turn) -> ResponsesWriter:
        return ResponsesWriter(head, turn)

    def count(self, tokens: int) -> dict[str, Any]:
        return {"object": "response.input_tokens", "input_tokens": tokens}

    def error(self, error: ApiError) -> dict[str, Any]:
        return {"error": {"message": error.message, "type": error.type, "param": None, "code": error.code}}


class ResponsesWriter:
    """Server-sent events of one streamed reply."""

    def __init__(self, head: ReplyHead, turn: Turn) -> None:
        self._head = head
        self._turn = turn
        self._maker = ItemMaker(head, turn)
        self._output: list[dict[str, Any]] = []
        """The items that are done."""
        self._open: tuple[object, OutputItem] | None = None
        """The item that grows, and what tells its part of the reply from the next."""
        self._sequence = 0

    def open(self) -> bytes:
        response = _response(self._head, self._turn, "in_progress", [])
        return self._event("response.created", response=response) + self._event("response.in_progress", response=response)

    def delta(self, event: ReplyEvent) -> bytes:
        part = event.index if isinstance(event, ToolCallDelta) else type(event)
        before = b""
        if self._open is None or self._open[0] != part:
            before = self._finish("completed") + self._begin(part, self._maker.make(event))
        assert self._open is not None
        item = self._open[1]
        return before + self._events(item, item.add(_text(event)))

    def ping(self) -> bytes:
        return sse.COMMENT

    def close(self, end: End) -> bytes:
        status = _status(end)
        last = self._finish(status)
        return last + self._event(f"response.{status}", response=_response(self._head, self._turn, status, self._output, usage=end.usage))

    def fail(self, error: ApiError) -> bytes:
        return self._event("response.failed", response=_response(self._head, self._turn, "failed", self._output, error=error))

    def _begin(self, part: object, item: OutputItem) -> bytes:
        self._open = (part, item)
        added = self._event("response.output_item.added", output_index=len(self._output), item=item.row("in_progress"))
        return added + self._events(item, item.begin())

    def _finish(self, status: str) -> bytes:
        if self._open is None:
            return b""
        item = self._open[1]
        last = self._events(item, item.end())
        row = item.row(status)
        done = self._event("response.output_item.done", output_index=len(self._output), item=row)
        self._output.append(row)
        self._open = None
        return last + done

    def _events(self, item: OutputItem, events: list[Event]) -> bytes:
        where = {"item_id": item.id, "output_index": len(self._output)}
        return b"".join(self._event(type, **where, **fields) for type, fields in events)

    def _event(self, type: str, **fields: Any) -> bytes:
        self._sequence += 1
        return sse.event({"type": type, "sequence_number": self._sequence - 1, **fields}, type)


def _text(event: ReplyEvent) -> str:
    return event.arguments if isinstance(event, ToolCallDelta) else event.text


def _status(end: End) -> str:
    return "incomplete" if end.finish == FinishReason.LENGTH else "completed"


def _response(
    head: ReplyHead, turn: Turn, status: str, output: list[dict[str, Any]], *, usage: Usage | None = None, error: ApiError | None = None
) -> dict[str, Any]:
    return {
        "id": f"resp_{head.id}",
        "object": "response",
        "created_at": int(head.created),
        "status": status,
        "error": None if error is None else _failure(error),
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "model": head.model,
        "output": output,
        "tools": write_tools(turn.tools),
        "usage": None if usage is None else _usage(usage),
        **{key: value if turn.fields.get(key) is None else turn.fields[key] for key, value in ECHOED.items()},
    }


def _failure(error: ApiError) -> dict[str, Any]:
    """Clients try again after a `server_error`, and give up at what they know to be their own."""
    return {"code": "server_error" if error.status >= 500 or error.code is None else error.code, "message": error.message}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.prompt_tokens - usage.cached_tokens},
        "output_tokens": usage.sampled_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.sampled_tokens,
    }
