"""What a wire dialect is: how a client's request becomes a turn, and a reply becomes the client's bytes.

Invariant: a dialect is pure. It sees no session, no token and no socket, so one file and one line in `dialects/__init__.py` add another.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from openforge.gateway.reply import ReplyEvent
from openforge.gateway.turn import Message, Turn
from openforge.types import FinishReason


class ApiError(Exception):
    """An answer that is not a reply; each dialect has its own shape for it."""

    def __init__(self, status: int, message: str, *, type: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code


class BadRequest(ApiError, ValueError):
    """The client's mistake."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(400, message, type="invalid_request_error", code=code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    prompt_tokens: int
    sampled_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHead:
    """What stays the same in every piece of one reply."""

    id: str
    model: str
    created: float = field(default_factory=time.time)


class StreamWriter(Protocol):
    """Writes one streamed reply: `open`, any number of `delta`, then `close` or `fail`."""

    def open(self) -> bytes: ...

    def delta(self, event: ReplyEvent) -> bytes: ...

    def close(self, finish: FinishReason, usage: Usage) -> bytes:
        """Everything that tells the client that the reply is complete."""
        ...

    def fail(self, error: ApiError) -> bytes:
        """End a stream that has begun in a way no client takes for a complete reply."""
        ...


class Dialect(Protocol):
    name: str
    path: str
    """Below `/v1`."""

    def read(self, body: dict[str, Any]) -> Turn:
        """Raises BadRequest."""
        ...

    def whole(self, head: ReplyHead, message: Message, finish: FinishReason, usage: Usage) -> dict[str, Any]: ...

    def writer(self, head: ReplyHead, turn: Turn) -> StreamWriter: ...

    def error(self, error: ApiError) -> dict[str, Any]: ...
