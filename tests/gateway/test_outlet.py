"""What a stream's client gets, and when, whether or not its connection takes it at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openforge.gateway.outlet import Outlet


class Connection:
    """An ASGI `send` that takes nothing while it is closed."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.complete = False
        self.open = asyncio.Event()
        self.open.set()

    async def send(self, message: Any) -> None:
        if not self.open.is_set():
            await self.open.wait()
        if message["type"] == "http.response.body":
            self.bodies.append(message["body"])
            self.complete = not message["more_body"]


async def test_bytes_go_out_at_once_while_the_connection_takes_them() -> None:
    connection, ended = Connection(), asyncio.get_running_loop().create_future()
    outlet = Outlet(connection.send, ended)
    outlet.put(b"a")
    outlet.put(b"b")
    assert connection.bodies == [b"a", b"b"]
    outlet.put(b"c", last=True)
    assert connection.complete
    assert ended.done()


async def test_what_gathers_goes_out_in_order_and_in_one_piece() -> None:
    connection, ended = Connection(), asyncio.get_running_loop().create_future()
    outlet = Outlet(connection.send, ended)
    outlet.put(b"a")
    connection.open.clear()
    for piece in (b"b", b"c", b"d"):
        outlet.put(piece)
    assert outlet.stuck_since is not None
    connection.open.set()
    outlet.put(b"e", last=True)
    await ended
    assert connection.bodies == [b"a", b"b", b"cde"]
    assert connection.complete
    assert outlet.stuck_since is None


async def test_a_failure_to_send_ends_the_stream_and_reaches_nobody_who_writes() -> None:
    async def send(message: Any) -> None:
        raise OSError("gone")

    ended = asyncio.get_running_loop().create_future()
    outlet = Outlet(send, ended)
    outlet.put(b"a")
    outlet.put(b"b", last=True)
    with pytest.raises(OSError, match="gone"):
        await ended


async def test_a_closed_outlet_sends_no_more() -> None:
    connection = Connection()
    outlet = Outlet(connection.send, asyncio.get_running_loop().create_future())
    outlet.put(b"a")
    connection.open.clear()
    outlet.put(b"b")
    outlet.close()
    connection.open.set()
    outlet.put(b"c")
    await asyncio.sleep(0)
    assert connection.bodies == [b"a"]
