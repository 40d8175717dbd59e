"""The body of a streamed response, written to from outside the response's own task.

Invariant: bytes go out in the order they were put. They go at once, without a change of tasks, while the connection takes them; what
gathers while it does not goes out in one piece, so that a slow client costs no system call a token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any

from starlette.types import Send

HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


class Outlet:
    def __init__(self, send: Send, ended: asyncio.Future[Any]) -> None:
        """`ended` is set when the last byte is sent, or to what sending failed with."""
        self._loop = asyncio.get_running_loop()
        self.last_sent = self._loop.time()
        """Loop time."""
        self.stuck_since: float | None = None
        """Loop time since when the connection has taken nothing."""
        self._send = send
        self._ended = ended
        self._held: list[bytes] = []
        self.begun = False
        """Whether the client has been told that the reply is a stream."""
        self._complete = False
        self._sending = False
        self._rest: asyncio.Task[None] | None = None

    def put(self, body: bytes, *, last: bool = False) -> None:
        self._held.append(body)
        self._complete = last
        if not self._sending:
            self._sending = True
            work = self._drain()
            try:
                awaited = work.send(None)
            except StopIteration:
                return
            self.stuck_since = self._loop.time()
            self._rest = self._loop.create_task(_go_on(work, awaited))

    def close(self) -> None:
        """Nobody takes the rest."""
        self._sending = True
        if self._rest is not None:
            self._rest.cancel()

    async def _drain(self) -> None:
        try:
            if not self.begun:
                self.begun = True
                await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            while self._held:
                body, last = b"".join(self._held), self._complete
                self._held.clear()
                await self._send({"type": "http.response.body", "body": body, "more_body": not last})
                self.last_sent = self._loop.time()
                self.stuck_since = self.last_sent if self._held else None
            self._sending = False
        except Exception as error:
            if not self._ended.done():
                self._ended.set_exception(error)
        else:
            if self._complete and not self._ended.done():
                self._ended.set_result(None)


async def _go_on(work: Coroutine[Any, Any, None], awaited: Any) -> None:
    """The rest of a coroutine that was begun by hand and has come to wait for something."""
    await _steps(work, awaited)


@coroutine
def _steps(work: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    try:
        while True:
            try:
                value = yield awaited
            except BaseException as error:
                awaited = work.throw(error)
            else:
                awaited = work.send(value)
    except StopIteration:
        return
