"""A damaged log is one clear error, whatever is done with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from openforge.coordinator import conversation, lineages, offered_tools, trajectories
from openforge.types import Call, UserError

Damage = Callable[[list[Call]], list[Call]]
DAMAGES: dict[str, Damage] = {
    "call b: its parent a is missing": lambda calls: calls[1:],
    "call a: it is its own ancestor": lambda calls: [replace(calls[0], parent_id="c", shared=4), *calls[1:]],
    "call b: it is there twice": lambda calls: [*calls, calls[1]],
    "call c: it shares 15 tokens with its parent, which has 14": lambda calls: [*calls[:2], replace(calls[2], shared=15)],
    "call c: it shares -1 tokens": lambda calls: [*calls[:2], replace(calls[2], shared=-1)],
    "call a: it shares 2 tokens with its parent, which has 0": lambda calls: [replace(calls[0], shared=2), *calls[1:]],
    "call b: it has 4 sampled tokens, 3 log-probabilities and 4 versions": lambda calls: [
        calls[0],
        replace(calls[1], logprobs=calls[1].logprobs[:3]),
        calls[2],
    ],
    "call b: it has 4 sampled tokens, 4 log-probabilities and 5 versions": lambda calls: [
        calls[0],
        replace(calls[1], versions=[*calls[1].versions, 0]),
        calls[2],
    ],
}


@pytest.mark.parametrize(("what", "damage"), DAMAGES.items(), ids=list(DAMAGES))
@pytest.mark.parametrize("use", [lineages, trajectories])
def test_damage_is_said_with_rollout_and_call(calls: Any, use: Callable[[list[Call]], object], what: str, damage: Damage) -> None:
    for id, parent in (("a", None), ("b", "a"), ("c", "b")):
        calls.add(id, parent)
    with pytest.raises(UserError, match=f"rollout r, {re.escape(what)}") as error:
        use(damage(list(calls.values())))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("use", [conversation, offered_tools])
def test_messages_of_a_damaged_log_are_not_put_together(calls: Any, use: Callable[[dict[str, Call], str], object]) -> None:
    calls.add("a")
    calls.add("b", "a")
    with pytest.raises(UserError, match="rollout r, call b: its parent a is missing"):
        use({"b": calls["b"]}, "b")
    with pytest.raises(UserError, match=r"rollout r, call .: it is its own ancestor"):
        use({"a": replace(calls["a"], parent_id="b"), "b": calls["b"]}, "b")
