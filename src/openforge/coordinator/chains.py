"""The calls that stand alone, and the chains the others form.

Invariant: a call is either alone or in exactly one chain. In a chain each call literally extends the one before, in one voice.

Retries: of calls with the same prompt, one of them marked as a retry, those with something anchored at them are what the agent went on
with. If there are none, the last complete reply is (a failed one only if all failed). The others are lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from openforge.coordinator.forest import Forest
from openforge.coordinator.lineage import Evidence, Lineage
from openforge.coordinator.words import voice
from openforge.types import Call, FinishReason, Fork, LineageKind

SIDE_PURPOSES = frozenset({"auxiliary", "classifier", "count_tokens", "memory", "prewarm", "summary", "title"})
"""Purposes a client names that are no part of the agent's work. A compaction and a review are."""
FAILED = (FinishReason.ABORTED, FinishReason.ERROR)


def set_apart(forest: Forest) -> dict[str, Lineage]:
    """The calls that are in no chain: lost retries, named side calls, failures; nothing is anchored at any of them."""
    alone = _retries(forest)
    for id, call in forest.calls.items():
        if id in alone or forest.anchored[id]:
            continue
        if call.speaker.purpose in SIDE_PURPOSES:
            alone[id] = Lineage(LineageKind.SIDE, [id], forest.anchor[id], call.speaker.purpose, Evidence.IDS)
        elif call.finish in FAILED:
            alone[id] = Lineage(LineageKind.ORPHAN, [id], forest.anchor[id])
    return alone


def chains_of(forest: Forest, alone: Collection[str]) -> list[list[str]]:
    """Each chain goes on with the extension that has most calls under it."""
    weight = forest.weights(alone)
    heir: dict[str, str] = {}
    for id, anchor in forest.anchor.items():
        if anchor is not None and forest.extends[id] and id not in alone and _one_voice(forest.calls[anchor], forest.calls[id]):
            best = heir.get(anchor)
            if best is None or (-weight[id], id) < (-weight[best], best):
                heir[anchor] = id
    chains = []
    for id in forest.calls.keys() - set(alone) - set(heir.values()):
        chain = [id]
        while chain[-1] in heir:
            chain.append(heir[chain[-1]])
        chains.append(chain)
    return sorted(chains, key=lambda chain: (forest.depth[chain[0]], chain[0]))


def _one_voice(one: Call, other: Call) -> bool:
    return voice(one) == voice(other) or None in (voice(one), voice(other))


def _retries(forest: Forest) -> dict[str, Lineage]:
    if not any(call.fork is Fork.RETRY for call in forest.calls.values()):
        return {}
    groups: dict[bytes, list[str]] = defaultdict(list)
    for id, prompt in forest.prompts().items():
        groups[prompt].append(id)
    lost: dict[str, Lineage] = {}
    for ids in groups.values():
        if not any(forest.calls[id].fork is Fork.RETRY for id in ids):
            continue
        kept = [id for id in ids if forest.anchored[id]] or [
            max(ids, key=lambda id: (forest.calls[id].finish not in FAILED, forest.calls[id].ended_at, id))
        ]
        lost |= {id: Lineage(LineageKind.RETRY, [id], kept[0]) for id in ids if id not in kept}
    return lost
