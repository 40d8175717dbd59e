"""A load of streamed chat calls on any OpenAI-compatible server, and the server that costs nothing.

Invariant: the caller's own work a call is small and the same for every server, so that figures of several servers may be compared.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

END = b"0\r\n\r\n"
"""The last bytes of a chunked reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What an engine that computes nothing does for each call."""

    tokens: int
    interval: float
    """Seconds from token to token, the first one included; 0 means at once."""

    @property
    def seconds(self) -> float:
        return self.tokens * self.interval

    async def beats(self) -> AsyncIterator[int]:
        """Token numbers, each at its time. Times are absolute: a late beat does not delay those after it."""
        start = time.monotonic()
        for number in range(self.tokens):
            if self.interval:
                await asyncio.sleep(start + (number + 1) * self.interval - time.monotonic())
            yield number


PACES = {"paced": Pace(tokens=16, interval=0.02), "flat out": Pace(tokens=16, interval=0.0)}


@dataclass(slots=True)
class Conversation:
    """One client: a chat that grows by a turn a call, over one connection."""

    url: str
    """Ends in /v1."""
    api_key: str
    history: str
    """The first user message."""
    messages: list[dict[str, str]] = field(default_factory=list)
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self) -> float:
        """Post the next turn and read the streamed reply; the seconds from the first byte sent to the last one read."""
        asked = {"role": "user", "content": f"And then? ({len(self.messages)})" if self.messages else self.history}
        self.messages.append(asked)
        where = urlsplit(self.url)
        assert where.hostname is not None
        # Some servers close a connection that has been idle for a few seconds.
        if self._streams is None or self._streams[0].at_eof():
            self._streams = await asyncio.open_connection(where.hostname, where.port, limit=1 << 24)
        reader, writer = self._streams
        body = json.dumps({"model": "null", "messages": self.messages, "stream": True}).encode()
        head = (
            f"POST {where.path}/chat/completions HTTP/1.1\r\nHost: {where.netloc}\r\nAuthorization: Bearer {self.api_key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        started = time.perf_counter()
        writer.write(head.encode() + body)
        await writer.drain()
        reply = await reader.readuntil(END)
        seconds = time.perf_counter() - started
        self.messages.append({"role": "assistant", "content": _text(reply)})
        return seconds

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


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
