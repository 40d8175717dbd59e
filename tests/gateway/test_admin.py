"""Minting, watching and closing rollouts over HTTP; who may, and whom a minted key reaches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from openforge.gateway import listen
from openforge.gateway.admin import Admin
from openforge.gateway.sampling import UNLIMITED
from openforge.pool import Store
from openforge.types import Outcome, Sampling

KEY = "the-admin-key"
ASK = [{"role": "user", "content": "hello"}]


class Desk:
    """The admin's side of a gateway with the scripted engine."""

    def __init__(self, house: Any, store: Store, admin: Admin, http: httpx.AsyncClient) -> None:
        self.house, self.store, self.admin, self.http = house, store, admin, http

    async def mint(self, **body: Any) -> dict[str, Any]:
        answer = await self.http.post("/rollouts", json=body)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    async def say(self, url: str, key: str, **options: Any) -> Any:
        async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
            return await client.chat.completions.create(model="m", messages=ASK, **options)


@pytest.fixture
async def desk(house: Any, tmp_path: Path) -> AsyncIterator[Desk]:
    with Store.open(tmp_path / "calls.db") as store:
        admin = Admin(house.gateway, store, key=KEY, base_paths={"chat": "/v1", "messages": ""}, sampling=Sampling(max_tokens=UNLIMITED))
        async with listen(house.gateway, more=admin.routes()) as house.address:
            async with httpx.AsyncClient(base_url=house.address, headers={"authorization": f"Bearer {KEY}"}) as http:
                yield Desk(house, store, admin, http)
            await admin.close()


async def test_a_rollout_is_minted_used_watched_and_closed(desk):
    made = await desk.mint(task_id="t1")
    assert made["base_urls"] == {
        "chat": f"{desk.house.address}/r/{made['id']}/v1",
        "messages": f"{desk.house.address}/r/{made['id']}",
    }
    reply = await desk.say(made["base_urls"]["chat"], "made-up")
    assert reply.choices[0].message.content == "ok"
    await desk.say(desk.house.address + "/v1", made["api_key"])
    tokens = sum(len(call.sampled) for call in desk.house.log.calls)
    at = f"/rollouts/{made['id']}"
    assert (await desk.http.get(at)).json() == {
        "id": made["id"],
        "state": "open",
        "calls": 2,
        "in_flight": 0,
        "sampled_tokens": tokens,
    }
    closed = (await desk.http.delete(at)).json()
    assert closed == {
        "id": made["id"],
        "state": "closed",
        "outcome": "finished",
        "calls": 2,
        "sampled_tokens": tokens,
        "truncated": False,
        "error": None,
    }
    assert (await desk.http.get(at)).json() == {"id": made["id"], "state": "closed", "outcome": "finished", "detail": ""}
    kept = desk.store.rollout(made["id"])
    assert (kept.outcome, kept.task_id, kept.split) == (Outcome.FINISHED, "t1", "serve")
    with pytest.raises(openai.NotFoundError):
        await desk.say(made["base_urls"]["chat"], made["api_key"])
    assert (await desk.http.delete(at)).status_code == 404


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}, {"authorization": "Bearer é"}])
@pytest.mark.parametrize(("method", "path"), [("POST", "/rollouts"), ("GET", "/rollouts/x"), ("DELETE", "/rollouts/x")])
async def test_without_the_admin_key_there_is_nothing(desk, method, path, headers):
    encoded = {name: value.encode("utf-8") for name, value in headers.items()}
    async with httpx.AsyncClient(base_url=desk.house.address, headers=encoded) as http:
        answer = await http.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_admin_key")
    assert desk.house.gateway.open_rollouts == 0


async def test_a_rollouts_key_reaches_that_rollout_only(desk):
    one, two = await desk.mint(), await desk.mint()
    assert len({one["id"], two["id"], one["api_key"], two["api_key"]}) == 4
    assert min(len(one["id"]), len(one["api_key"])) >= 32, "guessable"
    with pytest.raises(openai.PermissionDeniedError):
        await desk.say(two["base_urls"]["chat"], one["api_key"])
    for method, path in (("POST", "/rollouts"), ("DELETE", f"/rollouts/{one['id']}")):
        answer = await desk.http.request(method, path, headers={"authorization": f"Bearer {one['api_key']}"})
        assert answer.status_code == 401
    # The admin's key, in turn, opens no rollout.
    with pytest.raises(openai.AuthenticationError):
        await desk.say(desk.house.address + "/v1", KEY)
    assert not desk.house.log.calls


async def test_sampling_and_budget_are_the_minters(desk):
    made = await desk.mint(sampling={"temperature": 0.5, "top_k": 3}, token_budget=2)
    desk.house.say("hello the user")
    reply = await desk.say(made["base_urls"]["chat"], "k", temperature=2)
    assert (desk.house.engine.samplings[0].temperature, desk.house.engine.samplings[0].top_k) == (0.5, 3)
    assert reply.usage.completion_tokens == 2
    closed = (await desk.http.delete(f"/rollouts/{made['id']}")).json()
    assert (closed["outcome"], closed["truncated"]) == ("truncated", True)


async def test_time_to_live_closes_a_rollout(desk):
    made = await desk.mint(ttl=0.05)
    while (await desk.http.get(f"/rollouts/{made['id']}")).json()["state"] != "closed":  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert (await desk.http.get(f"/rollouts/{made['id']}")).json()["outcome"] == "timeout"
    assert desk.house.gateway.open_rollouts == 0
    assert (await desk.http.delete(f"/rollouts/{made['id']}")).status_code == 404


async def test_closing_aborts_what_is_in_flight_and_keeps_what_was_said(desk):
    made = await desk.mint(ttl=1000)
    desk.house.say("hello the user", pause_at=1)
    waiting = asyncio.create_task(desk.say(made["base_urls"]["chat"], "k"))
    await asyncio.wait_for(desk.house.engine.paused.wait(), 30)
    assert (await desk.http.get(f"/rollouts/{made['id']}")).json()["in_flight"] == 1
    assert (await desk.http.delete(f"/rollouts/{made['id']}")).json()["sampled_tokens"] == 1
    with pytest.raises(openai.APIStatusError):
        await waiting
    assert len(desk.house.log.calls[0].sampled) == 1


async def test_the_closer_tells_the_outcome(desk):
    made = await desk.mint()
    wrong = await desk.http.delete(f"/rollouts/{made['id']}?outcome=great")
    assert (wrong.status_code, "finished" in wrong.json()["error"]["message"]) == (400, True)
    assert (await desk.http.delete(f"/rollouts/{made['id']}?outcome=agent_error")).json()["outcome"] == "agent_error"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"ttl": 0}, "ttl"),
        ({"ttl": "inf"}, "ttl"),
        ({"token_budget": 0}, "token_budget"),
        ({"sampling": {"temperature": -1}}, "temperature"),
        ({"sampling": {"heat": 1}}, "heat"),
        ({"sampling": 3}, "sampling"),
        ({"id": "mine"}, "id"),
        ([], "object"),
    ],
)
async def test_a_wrong_order_is_one_clear_400(desk, body, says):
    answer = await desk.http.post("/rollouts", json=body)
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]["message"]
    assert "\n" not in answer.json()["error"]["message"]
    assert desk.house.gateway.open_rollouts == 0


async def test_stopping_ends_what_is_open(desk):
    made = await desk.mint(ttl=1000)
    await desk.admin.close()
    assert desk.store.rollout(made["id"]).outcome is Outcome.CANCELLED
