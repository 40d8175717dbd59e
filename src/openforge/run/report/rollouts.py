"""Which rollouts a report shows, and what it shows of each: every call, token by token.

Invariant: generated text is decoded from the recorded ids, so what is shown is what was sampled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from openforge.pool import Store
from openforge.types import Call, Outcome, Rollout

SHOWN_ROLLOUTS = 8
SHOWN_CALLS = 24
SHOWN_CHARACTERS = 6000
SHOWN_TOKENS = 1500


class Decoder(Protocol):
    def decode(self, ids: Sequence[int]) -> str: ...


class NumberDecoder:
    """Stands in where the run's tokenizer cannot be had any more."""

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(f"⟨{id}⟩" for id in ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One sampled token, or the few that make one character."""

    text: str
    tip: str
    shade: float
    """0 for a token that was certain, 1 for one that was all but impossible."""
    version: int | None
    """The weight version, where it differs from that of the token before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallView:
    call: Call
    parent: int | None
    """Index of the call it continues."""
    prompt: str
    spans: list[Span]
    tools: list[tuple[str, str]]
    """Name and arguments."""
    left_out: int
    """Sampled tokens that are not shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    why: str
    rollout: Rollout
    instruction: str
    calls: list[CallView]
    left_out: int
    """Calls that are not shown."""


def select(rollouts: Sequence[Rollout]) -> list[tuple[str, Rollout]]:
    """A few telling rollouts with why each was chosen: the ends of the reward scale early and late, held-out, and each odd outcome once."""
    ended = [rollout for rollout in rollouts if rollout.ended_at is not None]
    scored = [rollout for rollout in ended if rollout.reward is not None and rollout.split == "train"]
    tail = max(8, len(scored) // 10)
    early, late = scored[:tail], scored[-tail:]
    held_out = [rollout for rollout in ended if rollout.split != "train" and rollout.reward is not None]
    chosen: list[tuple[str, Rollout]] = []
    for why, among, best in (
        ("early, lowest reward", early, False),
        ("early, highest reward", early, True),
        ("late, highest reward", late[::-1], True),
        ("late, lowest reward", late[::-1], False),
        ("held-out, last evaluation", held_out[-16:], True),
    ):
        if among:
            chosen.append((why, (max if best else min)(among, key=_value)))
    for outcome in Outcome:
        odd = [rollout for rollout in ended if rollout.outcome is outcome is not Outcome.FINISHED]
        if odd:
            chosen.append((f"ended as {outcome.value.replace('_', ' ')}", odd[-1]))
    unique = {rollout.id: (why, rollout) for why, rollout in reversed(chosen)}
    return list(reversed(unique.values()))[:SHOWN_ROLLOUTS]


def view(why: str, rollout: Rollout, store: Store, decoder: Decoder) -> RolloutView:
    calls = store.calls(rollout.id)
    task = store.task(rollout.task_id)
    index = {call.id: call.index for call in calls}
    return RolloutView(
        why=why,
        rollout=rollout,
        instruction=task.instruction if task else "",
        calls=[_call(call, index, decoder) for call in calls[:SHOWN_CALLS]],
        left_out=max(0, len(calls) - SHOWN_CALLS),
    )


def _value(rollout: Rollout) -> float:
    assert rollout.reward is not None
    return rollout.reward.value


def _call(call: Call, index: dict[str, int], decoder: Decoder) -> CallView:
    return CallView(
        call=call,
        parent=index.get(call.parent_id) if call.parent_id else None,
        prompt=_clip(decoder.decode(call.delta)),
        spans=list(_spans(call, decoder)),
        tools=[_tool(tool) for tool in call.response.get("tool_calls") or ()],
        left_out=max(0, len(call.sampled) - SHOWN_TOKENS),
    )


def _tool(tool: dict[str, Any]) -> tuple[str, str]:
    function = tool.get("function", tool)
    arguments = function.get("arguments", "")
    return str(function.get("name", "")), arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _spans(call: Call, decoder: Decoder) -> Iterator[Span]:
    pending: list[int] = []
    """Places of tokens whose text is not complete yet: bytes of one character can be several tokens."""
    before: int | None = None
    for place in range(min(len(call.sampled), SHOWN_TOKENS)):
        pending.append(place)
        text = _new_text(call.sampled[: place + 1], len(pending), decoder)
        if text.endswith("\ufffd") and len(pending) < 4 and place + 1 < len(call.sampled):
            continue
        version = call.versions[place]
        surprise = -sum(call.logprobs[each] for each in pending)
        yield Span(
            text=text,
            tip="\n".join(
                f"log-probability {call.logprobs[each]:.4f} · id {call.sampled[each]} · weights v{call.versions[each]}" for each in pending
            ),
            shade=min(1.0, surprise / 5),
            version=version if version != before else None,
        )
        pending, before = [], version


def _new_text(ids: Sequence[int], new: int, decoder: Decoder) -> str:
    """What the last `new` ids add. Decoded behind a little context: some tokenizers drop a space at the start of a text."""
    context = ids[max(0, len(ids) - new - 4) : len(ids) - new]
    return decoder.decode([*context, *ids[len(ids) - new :]])[len(decoder.decode(context)) :]


def _clip(text: str) -> str:
    if len(text) <= SHOWN_CHARACTERS:
        return text
    half = SHOWN_CHARACTERS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters …\n{text[-half:]}"
