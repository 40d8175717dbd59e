"""The gateway on a socket.

Invariant: signals belong to whoever runs the gateway, and nothing is in flight any more when `listen` has ended.
"""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.routing import Route

from openforge.gateway.connection import guarded
from openforge.gateway.gateway import Gateway
from openforge.gateway.routes import application
from openforge.types import UserError


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to whoever runs the gateway."""
        yield


@asynccontextmanager
async def listen(gateway: Gateway, host: str = "127.0.0.1", port: int = 0, *, more: Sequence[Route] = ()) -> AsyncIterator[str]:
    """Serve the gateway and yield its address, e.g. `http://127.0.0.1:8000`. Port 0 takes a free one. Open rollouts are closed at the end.

    `more`: routes beside the gateway's own.

    Raises UserError when the address is not to be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only on sockets that say they are TCP; with it small replies wait 40 ms for an acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # A whole reply lies in the socket's buffer for as long as its client takes nothing: the kernel gives up on it, as the relay does.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(gateway.patience.stall * 1000))
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise UserError(
            f"gateway: cannot listen on {host}:{port}: {reason}; choose another port (gateway.port in a run file; 0 takes a free one)"
        ) from None
    name = f"[{host}]" if family == socket.AF_INET6 else host
    # Agents pause for minutes between calls on pooled connections; a short keep-alive would close one just as it is used again.
    config = uvicorn.Config(
        application(gateway, more),
        lifespan="off",
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=3600,
        timeout_graceful_shutdown=5,
    )
    config.load()
    config.http_protocol_class = guarded(config.http_protocol_class, gateway.limits)
    server = _Server(config)
    # A full collection looks at every object of the process, some 0.2 s of a program with torch; nothing that is here now will go.
    gc.collect()
    gc.freeze()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:  # noqa: ASYNC110 (uvicorn has no event for it)
            await asyncio.sleep(0.005)
        yield f"http://{name}:{listener.getsockname()[1]}"
    finally:
        await gateway.close_all()
        server.should_exit = True
        await serving
        listener.close()
        gc.unfreeze()
