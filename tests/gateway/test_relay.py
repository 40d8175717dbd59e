"""What a client sees while the engine is silent or fails late."""

from __future__ import annotations

import httpx
import pytest

from openforge.gateway.relay import Patience
from openforge.types import FinishReason, Sampling

BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "stream": True},
    "/v1/responses": {"model": "m", "input": "hi", "stream": True},
    "/v1/messages": {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}], "stream": True},
    "/v1beta/models/m:streamGenerateContent?alt=sse": {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
}
PINGS = {"/v1/messages": b"event: ping\n", "/v1beta/models/m:streamGenerateContent?alt=sse": b"\n"}


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_is_kept_alive_from_before_the_first_token_on(make_house, path):
    """claude-code#53379, cline#5415: a client gives up on a silent stream."""
    async with make_house(patience=Patience(ping=0.03)) as house, httpx.AsyncClient() as client:
        house.say("never said", pause_at=0)
        access = house.gateway.open("r", sampling=Sampling())
        async with client.stream("POST", house.address + access.path + path, json=BODIES[path]) as reply:
            assert reply.status_code == 200
            seen = b""
            async for piece in reply.aiter_bytes():
                seen += piece
                if seen.count(PINGS.get(path, b": keep-alive\n")) >= 3:
                    break
        (call,) = await house.recorded(1)
    assert (call.finish, call.sampled) == (FinishReason.ABORTED, [])


async def test_an_engine_that_fails_after_a_ping_fails_the_stream(make_house):
    async with make_house(patience=Patience(ping=0.02)) as house:
        client = await house.client()
        house.say("half", closed=False, error=RuntimeError("boom"), delay=0.1)
        with pytest.raises(Exception, match="boom"):
            async for _ in await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True):
                pass
        assert house.log.calls[0].finish is FinishReason.ERROR
