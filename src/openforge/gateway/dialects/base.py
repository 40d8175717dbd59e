"""What a wire dialect is: how a client's request becomes a turn, and a reply becomes the client's bytes.

Invariant: a dialect is pure. It sees no session, no token and no socket, so one file and one line in `dialects/__init__.py` add another.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from openforge.gateway.reply import End, Reply, ReplyEvent, Usage
from openforge.gateway.turn import Turn


class ApiError(Exception):
    """An answer that is not a reply; each dialect has its own shape for it."""

    def __init__(
        self, status: int, message: str, *, type: str, code: str | None = None, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """`type`: in OpenAI's words (`invalid_request_error`, `authentication_error`, `not_found_error`, `server_error`, …).
        `headers`: the answer's own, beside those of every answer."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.headers = headers


class BadRequest(ApiError, ValueError):
    """The client's mistake."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(400, message, type="invalid_request_error", code=code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a request's first line says beside its body."""

    path: str
    """The matched one of the dialect's paths, placeholders unfilled."""
    params: Mapping[str, str]
    """What filled the placeholders."""
    query: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHead:
    """What stays the same in every piece of one reply."""

    id: str
    """Hex, unique; item ids of a dialect derive from it, so they too stay the same."""
    model: str
    usage: Usage
    """As known before the first token; an upstream API tells its counts only at the end."""
    created: float = field(default_factory=time.time)


class StreamWriter(Protocol):
    """Writes one streamed reply: `open`, any number of `delta` and `ping`, then `close` or `fail`."""

    def open(self) -> bytes: ...

    def delta(self, event: ReplyEvent) -> bytes: ...

    def ping(self) -> bytes:
        """Something that every client of the dialect passes over, sent while the engine is silent."""
        ...

    def close(self, end: End) -> bytes:
        """Everything that tells the client that the reply is complete."""
        ...

    def fail(self, error: ApiError) -> bytes:
        """End a stream that has begun in a way no client takes for a complete reply."""
        ...


class Dialect(Protocol):
    name: str
    reply_paths: tuple[str, ...]
    """Below the rollout's address, `/v1` included; Starlette's placeholders."""
    count_paths: tuple[str, ...]
    """Where the same request is answered with the length of its prompt in tokens."""

    def read(self, body: dict[str, Any], target: Target) -> Turn:
        """Raises BadRequest."""
        ...

    def whole(self, head: ReplyHead, turn: Turn, reply: Reply, end: End) -> dict[str, Any]:
        """The plain reply: what a client adds the streamed one up to."""
        ...

    def writer(self, head: ReplyHead, turn: Turn) -> StreamWriter: ...

    def count(self, tokens: int) -> dict[str, Any]: ...

    def error(self, error: ApiError) -> dict[str, Any]: ...
