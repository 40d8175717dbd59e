"""Carries a call's events to its client.

Invariant: a client that goes away, or takes nothing for too long, aborts its call; a reply ends only after its record is durable; a failed
stream does not look complete; a stream is never silent for longer than `Patience.ping`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from openforge.gateway.body import error_response, json_response
from openforge.gateway.dialects.base import Dialect, ReplyHead
from openforge.gateway.outlet import Outlet
from openforge.gateway.recorder import Failed, Finished, RecorderEvent, Source
from openforge.gateway.turn import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds; tests shorten them."""

    ping: float = 10.0
    """Clients give up on a silent stream: the strictest known after 30 s."""
    stall: float = 300.0
    """How long a client may take nothing of what is sent."""


class Relay(Response):
    def __init__(self, source: Source, dialect: Dialect, turn: Turn, head: ReplyHead, patience: Patience) -> None:
        super().__init__()
        self._source = source
        self._dialect = dialect
        self._turn = turn
        self._writer = dialect.writer(head, turn)
        self._head = head
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Response | None] = self._loop.create_future()
        """Holds what is still to be sent then: nothing behind a stream."""
        self._outlet = Outlet(send, self._ended)
        watch = self._loop.create_task(self._watch_client(receive))
        self._clock = self._loop.call_later(self._patience.ping, self._watch_time) if self._turn.stream else None
        self._source.feed.listen(self._take)
        try:
            if (response := await self._ended) is not None:
                await response(scope, receive, send)
        finally:
            watch.cancel()
            if self._clock is not None:
                self._clock.cancel()
            self._outlet.close()
            self._source.feed.listen(_nobody)
            self._source.abort()

    async def _watch_client(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._source.abort()

    def _watch_time(self) -> None:
        outlet, now = self._outlet, self._loop.time()
        if outlet.stuck_since is not None:
            if now - outlet.stuck_since > self._patience.stall:
                self._ended.cancel()
        elif now - outlet.last_sent >= self._patience.ping:
            outlet.put(self._writer.ping() if outlet.begun else self._writer.open() + self._writer.ping())
        wait = max(self._patience.ping / 10, outlet.last_sent + self._patience.ping - now)
        self._clock = self._loop.call_later(wait, self._watch_time)

    def _take(self, events: Sequence[RecorderEvent]) -> None:
        """Called in the source's own task, which a fault in the client's stream does not concern."""
        if self._ended.done():
            return
        try:
            if self._turn.stream and (self._outlet.begun or not (events and isinstance(events[0], Failed))):
                self._stream(events)
            elif events and isinstance(events[-1], Finished | Failed):
                self._ended.set_result(self._whole(events[-1]))
        except Exception as error:
            self._ended.set_exception(error)

    def _stream(self, events: Sequence[RecorderEvent]) -> None:
        pieces = [] if self._outlet.begun else [self._writer.open()]
        for event in events:
            match event:
                case Finished(_, end):
                    pieces.append(self._writer.close(end))
                case Failed(error):
                    pieces.append(self._writer.fail(error))
                case _:
                    pieces.append(self._writer.delta(event))
        if pieces:
            self._outlet.put(b"".join(pieces), last=isinstance(events[-1], Finished | Failed) if events else False)

    def _whole(self, last: Finished | Failed) -> Response:
        if isinstance(last, Failed):
            return error_response(self._dialect, last.error)
        return json_response(self._dialect.whole(self._head, self._turn, last.reply, last.end))


def _nobody(events: Sequence[RecorderEvent]) -> None:
    """Takes what no client waits for."""
