"""Guards a connection while its client sends a request's head.

Invariant: a connection that sends its head too slowly, or sends none, is closed; a head that grows too large gets 400. What comes after the
head is guarded where it is read.
"""

from __future__ import annotations

import asyncio
from typing import Any

from openforge.gateway.limits import Limits


class HeadGuard(asyncio.Protocol):
    """Mixed into one of uvicorn's protocols, which know no such limits."""

    limits: Limits
    # As every uvicorn protocol has them:
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    cycle: Any
    """The request in progress, or the last one."""
    scope: Any
    send_400_response: Any

    _timer: asyncio.TimerHandle | None = None
    _bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._forget()
        elif before is None or before.response_complete:
            # A head in pieces; or the rest of a body that was answered early, which may not last for ever either.
            self._wait()
            self._bytes += len(data)
            if self._in_head() and self._bytes > self.limits.header_bytes and not self.transport.is_closing():
                self.send_400_response("Request head too large.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _in_head(self) -> bool:
        return self.scope is None or "method" not in self.scope

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.limits.header_seconds, self.transport.close)

    def _forget(self) -> None:
        self._bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def guarded(protocol: type[asyncio.Protocol], limits: Limits) -> type[asyncio.Protocol]:
    """The protocol, with a guard."""
    return type(f"Guarded{protocol.__name__}", (HeadGuard, protocol), {"limits": limits})
