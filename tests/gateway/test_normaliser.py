"""Volatile prefixes: taken out, reported, and what that wins."""

from __future__ import annotations

import pytest

from openforge.gateway.normaliser import RULES, Change, normalise
from openforge.gateway.turn import Message, Turn
from openforge.types import Fork

BILLING = "x-anthropic-billing-header: cc_version=2.1.197.a1b; cc_entrypoint=cli; cch={};"


def turn(*messages: Message) -> Turn:
    return Turn(messages=messages)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (BILLING.format("12") + "\nYou are an agent.", "You are an agent."),
        (BILLING.format("12") + "\n\nYou are an agent.\n", "You are an agent."),
        ("You are an agent.\n" + BILLING.format("12") + "\nBe brief.", "You are an agent.\nBe brief."),
        ("x-anthropic-billing-header: cch=9;\nBe brief.", "Be brief."),
    ],
)
def test_the_billing_line_is_taken_out_of_the_system_text(text, left):
    found, changes = normalise(turn(Message("system", text), Message("user", "hi")))
    assert [message.content for message in found.messages] == [left, "hi"]
    assert [change.rule for change in changes] == ["claude-code-billing"]
    assert changes[0].removed.startswith("x-anthropic-billing-header:")


def test_a_system_block_that_is_nothing_else_is_dropped():
    line = BILLING.format("12")
    found, changes = normalise(turn(Message("system", line), Message("system", "Be brief."), Message("user", "hi")))
    assert [message.content for message in found.messages] == ["Be brief.", "hi"]
    assert changes == (Change("claude-code-billing", line),)


@pytest.mark.parametrize(
    "messages",
    [
        (Message("system", "Be brief."), Message("user", BILLING.format(1))),
        (Message("system", "The header x-anthropic-billing-header: cch=1; is stripped."), Message("user", "hi")),
        (Message("system", "x-anthropic-billing-header: what is it?"), Message("user", "hi")),
        (Message("user", "hi"), Message("system", BILLING.format(1))),
        (Message("system", BILLING.format(1)),),
    ],
)
def test_nothing_else_is_touched(messages):
    before = turn(*messages)
    assert normalise(before) == (before, ())


async def talk(house, nonces: list[str]):
    """A conversation whose system prompt carries another nonce in every call."""
    client = await house.client()
    messages = [{"role": "user", "content": "hello"}]
    for nonce in nonces:
        system = {"role": "system", "content": BILLING.format(nonce) + "\nBe good."}
        reply = await client.chat.completions.create(model="m", messages=[system, *messages])
        messages += [reply.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "more"}]
    return house.log.calls


async def test_a_nonce_in_the_system_prompt_no_longer_forks_every_call(house):
    """anthropics/claude-code#68900, #50085; vllm PR#36829; ollama PR#14918; llama.cpp PR#20623."""
    one, two, three = await talk(house, ["a", "b", "c"])
    assert [call.fork for call in (one, two, three)] == [None, None, None]
    assert "billing" not in house.engine.tokenizer.decode(one.delta)
    assert "cch=b" in two.request["normalised"]["removed"][0]["removed"]
    assert [call.request["normalised"]["prefix_won"] for call in (one, two, three)] == [0, two.shared, three.shared]
    assert (await house.gateway.close("r1")).prefix_won == two.shared + three.shared > 0


async def test_without_the_rule_the_same_calls_fork(house, monkeypatch):
    monkeypatch.delitem(RULES, "claude-code-billing")
    one, two = await talk(house, ["a", "b"])
    assert (two.parent_id, two.fork, two.shared) == (None, Fork.ROOT, 0)
    assert "normalised" not in one.request


async def test_a_line_that_stays_the_same_wins_nothing(house):
    one, two = await talk(house, ["a", "a"])
    assert two.fork is None
    assert two.request["normalised"]["prefix_won"] == 0
    assert (await house.gateway.close("r1")).prefix_won == 0
    assert one.request["normalised"]["removed"] == two.request["normalised"]["removed"]
