"""Carries a call's events to its client.

Invariant: a client that goes away, or takes nothing for too long, aborts its call; a reply ends only after its record is durable; a failed
stream does not look complete; a stream is never silent for longer than `PING_SECONDS`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from openforge.gateway.body import error_response, json_response
from openforge.gateway.dialects.base import ApiError, Dialect, ReplyHead, StreamWriter
from openforge.gateway.recorder import Failed, Finished, RecorderEvent, Source, Started
from openforge.gateway.turn import Turn

HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds; tests shorten them."""

    ping: float = 10.0
    """Clients give up on a silent stream: the strictest known after 30 s."""
    stall: float = 300.0
    """How long a client may take nothing of what is sent."""


class Silence:
    """Nothing has come for a while."""


class Relay(Response):
    def __init__(self, source: Source, dialect: Dialect, turn: Turn, head: ReplyHead, patience: Patience) -> None:
        super().__init__()
        self._source = source
        self._events: asyncio.Queue[RecorderEvent | Silence] = source.events  # type: ignore[assignment]
        self._dialect = dialect
        self._turn = turn
        self._head = head
        self._patience = patience
        self._sending_since: float | None = None
        self._last_sent = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watches = [asyncio.create_task(self._watch_client(receive))]
        if self._turn.stream:
            watches.append(asyncio.create_task(self._watch_time(asyncio.current_task())))
        try:
            first = await self._events.get()
            if isinstance(first, Failed):
                await self._error(first.error)(scope, receive, send)
            elif self._turn.stream:
                await self._stream(first, send)
            else:
                await (await self._whole(first))(scope, receive, send)
        finally:
            for watch in watches:
                watch.cancel()
            self._source.abort()

    async def _watch_client(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._source.abort()

    async def _watch_time(self, relay: asyncio.Task[None] | None) -> None:
        assert relay is not None
        loop = asyncio.get_running_loop()
        self._last_sent = loop.time()
        while True:
            await asyncio.sleep(max(self._patience.ping / 10, self._last_sent + self._patience.ping - loop.time()))
            now = loop.time()
            if self._sending_since is not None:
                if now - self._sending_since > self._patience.stall:
                    relay.cancel()
            elif now - self._last_sent >= self._patience.ping and self._events.empty():
                self._events.put_nowait(Silence())

    async def _whole(self, event: RecorderEvent | Silence) -> Response:
        while not isinstance(event, Finished | Failed):
            event = await self._events.get()
        if isinstance(event, Failed):
            return self._error(event.error)
        return json_response(self._dialect.whole(self._head, self._turn, event.reply, event.end))

    async def _stream(self, event: RecorderEvent | Silence, send: Send) -> None:
        writer = self._dialect.writer(self._head, self._turn)
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        pieces, more = [writer.open(), *_piece(writer, event)], not isinstance(event, Finished | Failed)
        while more:
            # All that is there goes out in one write: a slow client must not cost a system call a token.
            while not self._events.empty() and more:
                event = self._events.get_nowait()
                pieces += _piece(writer, event)
                more = not isinstance(event, Finished | Failed)
            if pieces and more:
                await self._send(send, b"".join(pieces), more=True)
            if more:
                event = await self._events.get()
                pieces = _piece(writer, event)
                more = not isinstance(event, Finished | Failed)
        await self._send(send, b"".join(pieces), more=False)

    async def _send(self, send: Send, body: bytes, *, more: bool) -> None:
        loop = asyncio.get_running_loop()
        self._sending_since = loop.time()
        await send({"type": "http.response.body", "body": body, "more_body": more})
        self._sending_since, self._last_sent = None, loop.time()

    def _error(self, error: ApiError) -> Response:
        return error_response(self._dialect, error)


def _piece(writer: StreamWriter, event: RecorderEvent | Silence) -> list[bytes]:
    match event:
        case Started():
            return []
        case Silence():
            return [writer.ping()]
        case Finished(_, end):
            return [writer.close(end)]
        case Failed(error):
            return [writer.fail(error)]
    return [writer.delta(event)]
