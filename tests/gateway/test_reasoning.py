"""Reasoning that clients lose, and reasoning they change."""

from __future__ import annotations

import pytest

from openforge.gateway.reasoning import ReasoningStore
from openforge.gateway.turn import Message, ToolCall
from openforge.types import Fork

ASK = [{"role": "system", "content": "Be good."}, {"role": "user", "content": "hello"}]
MORE = {"role": "user", "content": "more"}


def reply(text: str = "", reasoning: str = "", id: str = "", arguments: str = "{}") -> Message:
    return Message("assistant", text, reasoning, (ToolCall(id, "add", arguments),) if id else ())


def said(store: ReasoningStore, message: Message) -> str:
    return store.restore([message])[0].reasoning


def test_lost_reasoning_is_found_by_id_and_by_what_was_said():
    store = ReasoningStore()
    store.add(reply("", "one", "c1", '{"a": 1, "b": 2}'))
    store.add(reply("", "two", "c2", '{"a": 1, "b": 2}'))
    assert said(store, reply("", "", "c1", '{"b":2,"a":1}')) == "one"
    assert said(store, reply("", "", "renamed", '{"b":2,"a":1}')) == "two"
    assert said(store, reply("", "", "renamed", '{"b":3}')) == ""
    store.add(reply("four", "three"))
    assert said(store, reply(" four\n")) == "three"
    assert said(store, Message("user", "four")) == ""


def test_what_the_client_sends_is_left_alone():
    store = ReasoningStore()
    store.add(reply("four", "hm"))
    own = reply("four", "my own words")
    assert store.restore([own]) == (own,)
    assert not store.knows(own)
    assert store.knows(reply("four", " hm\n"))


def test_a_restored_message_says_so_in_its_record():
    store = ReasoningStore()
    store.add(reply("four", "hm"))
    assert store.restore([reply("four")])[0].record() == {
        "role": "assistant",
        "content": "four",
        "reasoning": "hm",
        "extra": {"reasoning": "restored"},
    }


async def converse(house, edit):
    """Two turns; then a third call whose history `edit` has changed. The client keeps no reasoning."""
    client = await house.client()
    messages = list(ASK)
    for word in ("four", "five"):
        house.say(f"<think>\nI think {word}\n</think>\n\n{word}")
        answer = await client.chat.completions.create(model="m", messages=messages)
        messages += [{"role": "assistant", "content": answer.choices[0].message.content}, MORE]
    await client.chat.completions.create(model="m", messages=edit(messages))
    call = house.log.calls[-1]
    return call, house.engine.tokenizer.decode(house.engine.prompts[-1], skip_special_tokens=False)


@pytest.mark.parametrize(
    ("edit", "fork"),
    [
        (lambda m: m, None),
        (lambda m: [{"role": "system", "content": "Other."}, *m[1:]], Fork.ROOT),
        (lambda m: [m[0], {"role": "user", "content": "Summary of what was."}, *m[4:]], Fork.ROOT),
        (lambda m: [*m[:1], MORE, *m[1:]], Fork.ROOT),
    ],
)
async def test_a_prompt_rendered_anew_still_carries_what_was_thought(house, edit, fork):
    """PrimeIntellect-ai/prime-rl#1334, #947; huggingface/trl#6124; NousResearch/hermes-agent#75725: thinking lost in multi-turn."""
    call, prompt = await converse(house, edit)
    assert call.fork == fork
    assert "I think five\n</think>\n\nfive" in prompt


async def test_reasoning_the_client_changed_is_the_clients_text(house):
    def edit(messages):
        return [*messages[:4], {**messages[4], "reasoning_content": "my own words"}, *messages[5:]]

    call, prompt = await converse(house, edit)
    assert call.fork == Fork.EDITED
    assert "my own words" in prompt
    assert "I think five" not in prompt
    assert "I think four" in prompt


async def test_changed_reasoning_of_an_older_reply_is_not_passed_over(house):
    def edit(messages):
        return [*messages[:2], {**messages[2], "reasoning_content": "my own words"}, *messages[3:]]

    call, prompt = await converse(house, edit)
    assert call.fork == Fork.EDITED
    assert "my own words" in prompt
    assert "I think four" not in prompt
    assert "I think five" in prompt
