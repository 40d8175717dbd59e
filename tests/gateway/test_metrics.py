"""What Prometheus reads at /metrics."""

from __future__ import annotations

import asyncio

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from openforge.types import PromptTooLong, Sampling

ASK = [{"role": "user", "content": "hello"}]


async def scrape(house):
    async with httpx.AsyncClient() as http:
        answer = await http.get(f"{house.address}/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.text)
    samples = [sample for family in families for sample in family.samples if not sample.name.endswith("_created")]
    return {(sample.name.removeprefix("openforge_gateway_"), *sample.labels.values()): sample.value for sample in samples}, answer.text


async def test_calls_tokens_forks_and_times_are_counted(house):
    client = await house.client("secret-rollout")
    await client.chat.completions.create(model="m", messages=ASK)
    await client.chat.completions.create(model="m", messages=ASK, extra_headers={"x-stainless-retry-count": "1"})
    await client.chat.completions.create(model="m", messages=ASK)
    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "private words"}])
    found, page = await scrape(house)
    calls = house.log.calls
    assert found["calls_total", "chat", "stop"] == 3
    assert (found["forks_total", "retry"], found["forks_total", "root"]) == (1, 1)
    assert found["replays_total",] == 1
    assert found["prompt_tokens_total",] == sum(call.shared + len(call.delta) for call in calls)
    assert found["cached_tokens_total",] == sum(call.shared for call in calls) > 0
    assert found["sampled_tokens_total",] == sum(len(call.sampled) for call in calls)
    assert found["first_token_seconds_count",] == found["call_seconds_count",] == 3
    assert (found["open_rollouts",], found["calls_in_flight",]) == (1, 0)
    assert not any(word in page for word in ("secret-rollout", "private", "sk-")), "the page tells who calls, or what"


async def test_what_is_in_flight_and_aborted_shows(house):
    house.say("hello you", pause_at=1)
    client = await house.client()
    stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
    await asyncio.wait_for(house.engine.paused.wait(), 5)
    assert (await scrape(house))[0]["calls_in_flight",] == 1
    await stream.close()
    await house.recorded(1)
    found, _ = await scrape(house)
    assert (found["calls_in_flight",], found["calls_total", "chat", "aborted"]) == (0, 1)


async def test_every_error_answer_is_counted_by_its_status(house):
    client = await house.client()
    async with httpx.AsyncClient(base_url=house.address) as http:
        await http.get("/nowhere")
        await http.post("/v1/chat/completions", json={})
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(model="m", messages=[])
    house.say(error=PromptTooLong(), closed=False)
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(model="m", messages=ASK)
    house.say("x", error=RuntimeError("boom"), closed=False)
    with pytest.raises(openai.InternalServerError):
        await client.chat.completions.create(model="m", messages=ASK)
    found, _ = await scrape(house)
    errors = {labels[0]: value for (name, *labels), value in found.items() if name == "errors_total"}
    assert errors == {"400": 2, "401": 1, "404": 1, "500": 1}
    assert found["calls_total", "chat", "error"] == 1


async def test_two_gateways_in_one_process_count_apart(house, make_house):
    async with make_house() as other:
        other.gateway.open("r", sampling=Sampling())
        assert (await scrape(other))[0]["open_rollouts",] == 1
    assert (await scrape(house))[0]["open_rollouts",] == 0
