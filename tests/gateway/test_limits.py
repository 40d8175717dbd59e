"""What one client may cost: sizes, depths, times and numbers, over raw sockets where a well-behaved client would not do."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
import zstandard

from openforge.gateway import Limits
from openforge.gateway.relay import Patience
from openforge.types import FinishReason, Sampling

ASK = {"messages": [{"role": "user", "content": "hello"}]}
CHAT = "/r/r1/v1/chat/completions"
GEMINI = "/r/r1/v1beta/models/m:generateContent"


@asynccontextmanager
async def open_house(make_house, *, patience=None, **limits):
    async with make_house(limits=Limits(**limits), patience=patience) as house:
        house.gateway.open("r1", sampling=Sampling(max_tokens=1 << 20))
        yield house


async def post(house, content, *, path=CHAT, headers=None):
    async with httpx.AsyncClient(base_url=house.address) as client:
        return await client.post(path, content=content if isinstance(content, bytes) else json.dumps(content), headers=headers)


@asynccontextmanager
async def raw(house):
    """A connection without manners."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", int(house.address.rsplit(":", 1)[1])))
    reader, writer = await asyncio.open_connection(sock=client, limit=1 << 12)
    yield reader, writer
    writer.transport.abort()


def head(length, path=CHAT):
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n".encode()


def assert_nothing_is_left(house):
    assert house.gateway.in_flight == 0
    assert not any(session.in_flight for session in house.gateway._sessions.values())
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("call ")]


async def settled(house):
    """Wait until no request is being answered."""
    while house.gateway.in_flight or [task for task in asyncio.all_tasks() if "run_asgi" in repr(task)]:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


# --- bodies -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.compress), ("identity", bytes), ("GZip", gzip.compress)]
)
async def test_compressed_request_bodies_are_read(house, encoding, pack):
    house.gateway.open("r1", sampling=Sampling())
    answer = await post(house, pack(json.dumps(ASK).encode()), headers={"content-encoding": encoding})
    assert answer.status_code == 200
    assert house.log.calls[0].request["messages"][0]["content"] == "hello"


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
async def test_body_that_unpacks_beyond_the_limit_is_a_413_and_is_not_unpacked(make_house, encoding, pack):
    async with open_house(make_house, body_bytes=1 << 20) as house:
        bomb = pack(bytes(1 << 26))
        assert len(bomb) < 1 << 17
        answer = await post(house, bomb, headers={"content-encoding": encoding})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    "body",
    [b"nonsense", b"", gzip.compress(b"{}" * 1000)[:-12], zstandard.compress(b'{"a": 1}' * 999)[:-4]],
    ids=["nonsense", "empty", "cut gzip", "cut zstd"],
)
@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_body_that_does_not_unpack_is_a_400(house, encoding, body):
    house.gateway.open("r1", sampling=Sampling())
    assert (await post(house, body, headers={"content-encoding": encoding})).status_code == 400


async def test_unknown_content_encoding_is_a_415_that_names_the_known_ones(house):
    house.gateway.open("r1", sampling=Sampling())
    answer = await post(house, b"x", headers={"content-encoding": "br"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (415, "content encoding 'br' is not one of: gzip, zstd")


async def test_body_beyond_the_limit_is_a_413(make_house):
    async with open_house(make_house, body_bytes=1000) as house:
        answer = await post(house, {**ASK, "pad": "x" * 2000})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


async def test_body_that_nests_too_deeply_is_a_400_however_deep(house):
    house.gateway.open("r1", sampling=Sampling())
    for depth, status in ((98, 200), (99, 400), (800, 400), (100_000, 400)):
        deep = b'{"messages": [{"role": "user", "content": "x"}], "deep": {"": ' + b"[" * depth + b"]" * depth + b"}}"
        assert (await post(house, deep)).status_code == status


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-16"])
async def test_content_type_does_not_matter(house, kind):
    house.gateway.open("r1", sampling=Sampling())
    assert (await post(house, ASK, headers={"content-type": kind} if kind else None)).status_code == 200


# --- times --------------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["httptools", "h11"])
def protocol(request, monkeypatch):
    """Whichever protocol the server asks uvicorn for, it gets this one."""
    for name in uvicorn.config.HTTP_PROTOCOLS:
        monkeypatch.setitem(uvicorn.config.HTTP_PROTOCOLS, name, uvicorn.config.HTTP_PROTOCOLS[request.param])


@pytest.mark.usefixtures("protocol")
@pytest.mark.parametrize("sent", [b"", b"POST / HTTP/1.1\r\nhost: x\r\n", head(10_000) + b"x"])
async def test_connection_that_says_too_little_is_closed(make_house, sent):
    async with open_house(make_house, header_seconds=0.1, body_seconds=0.1) as house, raw(house) as (reader, writer):
        writer.write(sent)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408") if sent.startswith(b"POST /r") else answer == b""
        await settled(house)


@pytest.mark.usefixtures("protocol")
async def test_connection_that_drips_its_headers_is_closed(make_house):
    async with open_house(make_house, header_seconds=0.2) as house, raw(house) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\n")
        while not reader.at_eof() and reader.exception() is None:
            writer.write(b"x: y\r\n")
            await asyncio.sleep(0.02)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""


@pytest.mark.usefixtures("protocol")
async def test_head_beyond_the_limit_is_a_400_and_the_connection_ends(make_house):
    async with open_house(make_house, header_bytes=1000) as house, raw(house) as (reader, writer):
        for piece in (b"GET /health HTTP/1.1\r\n", b"x: ", b"y" * 1000):
            writer.write(piece)
            await asyncio.sleep(0.02)
        assert (await reader.read()).startswith(b"HTTP/1.1 400")


@pytest.mark.usefixtures("protocol")
async def test_guarded_connection_still_serves_slow_starts_and_keeps_alive(make_house):
    async with open_house(make_house, header_seconds=0.2) as house, raw(house) as (reader, writer):
        for _ in range(2):
            writer.write(b"GET /health HT")
            await asyncio.sleep(0.02)
            writer.write(b"TP/1.1\r\nhost: x\r\n\r\n")
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
            await reader.readuntil(b"}")
            await asyncio.sleep(0.3)


# --- numbers ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limits", "says"), [({"calls_per_rollout": 2}, "the rollout has 2"), ({"calls": 2}, "the gateway has 2")])
@pytest.mark.parametrize(("path", "body"), [(CHAT, ASK), (GEMINI, {"contents": [{"parts": [{"text": "hello"}]}]})])
async def test_too_many_calls_at_a_time_are_a_429_in_the_dialects_shape_until_one_has_ended(make_house, limits, says, path, body):
    async with open_house(make_house, **limits) as house:
        for _ in range(2):
            house.say("one two", pause_at=1)
        requests = [asyncio.create_task(post(house, ASK)) for _ in range(2)]
        while len(house.gateway._sessions["r1"].in_flight) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        answer = await post(house, body, path=path)
        error = answer.json()["error"]
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert says in error["message"]
        assert error.get("status", error.get("type")) in ("RESOURCE_EXHAUSTED", "rate_limit_error")
        requests[0].cancel()
        await house.recorded(1)
        assert (await post(house, body, path=path)).status_code == 200
        await house.gateway.close("r1")
        await requests[1]
        assert_nothing_is_left(house)


# --- slow and rude clients ----------------------------------------------------------------------------------------------------------------


LONG = "word " * 8_000


async def test_client_that_never_reads_is_given_up_and_its_call_is_recorded(make_house):
    async with open_house(make_house, patience=Patience(ping=0.05, stall=0.2)) as house, raw(house) as (_, writer):
        house.say(LONG, pause_at=20_000)
        body = json.dumps({**ASK, "stream": True}).encode()
        writer.write(head(len(body)) + body)
        [call] = await house.recorded(1)
        assert call.finish == FinishReason.ABORTED
        assert 0 < len(call.sampled) <= 20_000
        await settled(house)
        assert_nothing_is_left(house)


async def test_client_that_reads_a_byte_at_a_time_gets_everything(make_house):
    async with open_house(make_house, patience=Patience(ping=0.05, stall=10)) as house, raw(house) as (reader, writer):
        house.say("one two three")
        body = json.dumps({**ASK, "stream": True}).encode()
        writer.write(head(len(body)) + body)
        answer = b""
        while not answer.endswith(b"0\r\n\r\n"):
            answer += await reader.read(1)
        assert b"[DONE]" in answer
        assert house.log.calls[0].finish == FinishReason.STOP
        await settled(house)
        assert_nothing_is_left(house)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", ["head", "half a body", "body", "first piece"])
async def test_client_that_disconnects_at_any_point_leaves_nothing_behind(house, stream, after):
    if after == "first piece" and not stream:
        pytest.skip("a plain reply comes in one piece")
    house.gateway.open("r1", sampling=Sampling())
    house.say("one two three", pause_at=3)
    body = json.dumps({**ASK, "stream": stream}).encode()
    async with raw(house) as (reader, writer):
        writer.write(head(len(body)) + {"head": b"", "half a body": body[:20]}.get(after, body))
        if after in ("body", "first piece"):
            await house.engine.paused.wait()
        else:
            await asyncio.sleep(0.05)
        if after == "first piece":
            await reader.readuntil(b"data: ")
    await settled(house)
    assert_nothing_is_left(house)
    assert [call.finish for call in house.log.calls] == ([FinishReason.ABORTED] if after in ("body", "first piece") else [])


# --- everything else ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/r/r1", "/r/r1/", "/r/none"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_somebody_answers_at_the_root(house, path, method):
    async with httpx.AsyncClient(base_url=house.address) as client:
        assert (await client.request(method, path)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "shape"),
    [
        ("GET", "/v1/chat/completions", 405, "type"),
        ("POST", "/v1/nothing", 404, "type"),
        ("GET", "/r/r1/v1beta/models/m:generateContent", 405, "status"),
        ("POST", "/v1beta/models/m:embedContent", 404, "status"),
        ("POST", "/r/r1/v1beta/models", 404, "type"),
    ],
)
async def test_unknown_paths_and_methods_are_answered_in_the_shape_of_the_dialect_nearby(house, method, path, status, shape):
    async with httpx.AsyncClient(base_url=house.address) as client:
        answer = await client.request(method, path)
    assert answer.status_code == status
    assert shape in answer.json()["error"]
    assert answer.headers.get("allow") == ("POST" if status == 405 else None)


async def test_fault_of_the_gateway_itself_is_a_500_in_the_dialects_shape_that_tells_no_secrets(house, monkeypatch):
    house.gateway.open("r1", sampling=Sampling())
    monkeypatch.setattr(house.gateway, "start", lambda *_: 1 / 0)
    answer = await post(house, {"contents": [{"parts": []}]}, path=GEMINI)
    assert (answer.status_code, answer.json()["error"]["status"]) == (500, "INTERNAL")
    assert "zero" not in answer.text
