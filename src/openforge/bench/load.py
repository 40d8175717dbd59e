"""A load of streamed chat calls on any OpenAI-compatible server, and the server that costs nothing.

Invariant: the caller's own work a call is small and the same for every server, so that figures of several servers may be compared.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

END = b"0\r\n\r\n"
"""The last bytes of a chunked reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What an engine that computes nothing does for each call.

    It batches: a token comes for all running calls on one beat, and a call joins at the first beat after it has come. Beats are the
    multiples of the interval on the machine's monotonic clock, so whoever calls knows them too.
    """

    tokens: int
    interval: float
    """Seconds from beat to beat; 0 means that all tokens come at once."""

    @property
    def seconds(self) -> float:
        """From joining to the last token."""
        return self.tokens * self.interval

    def due(self, sent: float) -> float:
        """When the last token comes for a call that reaches the engine as it is sent."""
        return (math.ceil(sent / self.interval) + self.tokens) * self.interval if self.interval else sent

    async def beats(self) -> AsyncIterator[int]:
        """Token numbers, each at its time. Times are absolute: a late beat does not delay those after it."""
        joined = math.ceil(time.monotonic() / self.interval) if self.interval else 0
        for number in range(self.tokens):
            if self.interval:
                await _reach((joined + number + 1) * self.interval)
            yield number


_waiting: dict[float, list[asyncio.Future[None]]] = {}
"""Time of a beat -> who waits for it, in the order they are served in. A call's place is arbitrary, like in an engine's batch."""
_places = random.Random(0)


async def _reach(beat: float) -> None:
    """One timer wakes all calls, like the step of an engine that has tokens for all of them."""
    loop = asyncio.get_running_loop()
    if beat not in _waiting:
        _waiting[beat] = []
        loop.call_at(beat, _wake, beat)
    waiting = _waiting[beat]
    waiting.insert(_places.randrange(len(waiting) + 1), woken := loop.create_future())
    await woken


def _wake(beat: float) -> None:
    for woken in _waiting.pop(beat):
        if not woken.done():
            woken.set_result(None)


PACES = {"paced": Pace(tokens=16, interval=0.02), "flat out": Pace(tokens=16, interval=0.0)}


@dataclass(frozen=True, slots=True)
class Timing:
    """Of one call, on the monotonic clock."""

    sent: float
    """The first byte."""
    ended: float
    """The last byte."""


@dataclass(slots=True)
class Conversation:
    """One client: a chat that grows by a turn a call, over one connection."""

    url: str
    """Ends in /v1."""
    api_key: str
    history: str
    """The first user message."""
    messages: list[dict[str, str]] = field(default_factory=list)
    _connection: _Connection | None = None

    async def call(self) -> Timing:
        """Post the next turn and read the streamed reply."""
        asked = {"role": "user", "content": f"And then? ({len(self.messages)})" if self.messages else self.history}
        self.messages.append(asked)
        where = urlsplit(self.url)
        assert where.hostname is not None
        assert where.port is not None
        # Some servers close a connection that has been idle for a few seconds.
        if self._connection is None or self._connection.closed:
            loop = asyncio.get_running_loop()
            _, self._connection = await loop.create_connection(_Connection, where.hostname, where.port)
        body = json.dumps({"model": "null", "messages": self.messages, "stream": True}).encode()
        head = (
            f"POST {where.path}/chat/completions HTTP/1.1\r\nHost: {where.netloc}\r\nAuthorization: Bearer {self.api_key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        sent = time.monotonic()
        ended, reply = await self._connection.ask(head.encode() + body)
        self.messages.append({"role": "assistant", "content": _text(reply)})
        return Timing(sent, ended)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class _Connection(asyncio.Protocol):
    """A request at a time. Leaner than a stream: the caller's work for a token delays all its other clients."""

    closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    async def ask(self, request: bytes) -> tuple[float, bytes]:
        """When the reply's last byte came, and the reply."""
        self._reply = bytearray()
        self._answer: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer, bytes(self._reply)

    def data_received(self, data: bytes) -> None:
        self._reply += data
        if self._reply.endswith(END):
            self._answer.set_result(time.monotonic())

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if not self._answer.done():
            self._answer.set_exception(ConnectionError("the server closed the connection within a reply"))

    def close(self) -> None:
        self._transport.close()


def _text(reply: bytes) -> str:
    """What the streamed reply says. Raises RuntimeError for one that is no complete stream."""
    if not reply.startswith(b"HTTP/1.1 200") or b"data: [DONE]" not in reply:
        raise RuntimeError(f"not a complete stream: {reply[:500]!r}")
    text = []
    for line in reply.split(b"\n"):
        if line.startswith(b"data: {"):
            chunk: dict[str, Any] = json.loads(line[6:])
            text += [choice["delta"].get("content") or "" for choice in chunk["choices"]]
    return "".join(text)
