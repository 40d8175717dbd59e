"""Carries a call's events to its client.

Invariant: a client that goes away aborts its call; a reply ends only after its record is durable; a failed stream does not look complete.
"""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from openforge.gateway.body import json_response
from openforge.gateway.dialects.base import ApiError, Dialect, ReplyHead
from openforge.gateway.recorder import Failed, Finished, Recorder, RecorderEvent, Started
from openforge.gateway.turn import Turn

HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


class Relay(Response):
    def __init__(self, recorder: Recorder, dialect: Dialect, turn: Turn, head: ReplyHead) -> None:
        super().__init__()
        self._recorder = recorder
        self._dialect = dialect
        self._turn = turn
        self._head = head

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.create_task(self._watch(receive))
        try:
            first = await self._recorder.events.get()
            if isinstance(first, Failed):
                await self._error(first.error)(scope, receive, send)
            elif self._turn.stream:
                await self._stream(first, send)
            else:
                await (await self._whole(first))(scope, receive, send)
        finally:
            watch.cancel()
            self._recorder.abort()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._recorder.abort()

    async def _whole(self, event: RecorderEvent) -> Response:
        while not isinstance(event, Finished | Failed):
            event = await self._recorder.events.get()
        if isinstance(event, Failed):
            return self._error(event.error)
        return json_response(self._dialect.whole(self._head, event.message, event.finish, event.usage))

    async def _stream(self, event: RecorderEvent, send: Send) -> None:
        writer = self._dialect.writer(self._head, self._turn)
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await send({"type": "http.response.body", "body": writer.open(), "more_body": True})
        while not isinstance(event, Finished | Failed):
            if not isinstance(event, Started):
                await send({"type": "http.response.body", "body": writer.delta(event), "more_body": True})
            event = await self._recorder.events.get()
        end = writer.fail(event.error) if isinstance(event, Failed) else writer.close(event.finish, event.usage)
        await send({"type": "http.response.body", "body": end, "more_body": False})

    def _error(self, error: ApiError) -> Response:
        return json_response(self._dialect.error(error), error.status)
