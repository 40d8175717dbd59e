"""Token sequences to train on: calls -> trajectories.

Invariant: every sampled token of every call is `sampled` in exactly one trajectory, that of its call's lineage, and there it is trained or
masked with a reason: sum(sampled) == sum(trained) + sum(masked).

What is masked here: a lost retry (RETRY); an aborted or failed reply that nothing was built on (ABORTED, ERROR); a side call (SIDE),
because the reward judges the agent's work, which a title has no part in. Reasons that come from outside the rollout (no reward, zero
variance, staleness, eviction) are added by `mask_all`. An aborted reply that a later prompt goes on from is trained like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from openforge.coordinator.forest import Forest
from openforge.coordinator.threads import lineages_of
from openforge.types import Call, FinishReason, LineageKind, MaskReason, Trajectory

_MASKED_KINDS = {LineageKind.RETRY: MaskReason.RETRY, LineageKind.SIDE: MaskReason.SIDE}
_MASKED_FINISHES = {FinishReason.ABORTED: MaskReason.ABORTED, FinishReason.ERROR: MaskReason.ERROR}


def trajectories(calls: Sequence[Call]) -> list[Trajectory]:
    """One trajectory a lineage, in lineage order: the whole sequence of the lineage's last call.

    `call_ids` are all calls of whose replies the sequence holds something, the oldest first. Lineages without a sampled token have none.
    """
    forest = Forest(calls)
    found = []
    for lineage in lineages_of(forest):
        tail = lineage.call_ids[-1]
        tokens = np.array(forest.sequence(tail), dtype=np.int32)
        sampled, trained = np.zeros(len(tokens), dtype=np.bool_), np.zeros(len(tokens), dtype=np.bool_)
        logprobs, versions = np.zeros(len(tokens), dtype=np.float32), np.full(len(tokens), -1, dtype=np.int32)
        masked: Counter[MaskReason] = Counter()
        for call in (forest.calls[id] for id in lineage.call_ids):
            reply = slice(forest.prompt_length[call.id], forest.length[call.id])
            sampled[reply], logprobs[reply], versions[reply] = True, call.logprobs, call.versions
            reason = _MASKED_KINDS.get(lineage.kind)
            if reason is None and not forest.anchored[call.id]:
                reason = _MASKED_FINISHES.get(call.finish)
            if reason is None:
                trained[reply] = True
            elif call.sampled:
                masked[reason] += len(call.sampled)
        if sampled.any():
            found.append(
                Trajectory(
                    rollout_id=forest.calls[tail].rollout_id,
                    kind=lineage.kind,
                    call_ids=forest.path(tail),
                    tokens=tokens,
                    sampled=sampled,
                    trained=trained,
                    logprobs=logprobs,
                    versions=versions,
                    masked=dict(masked),
                )
            )
    return found


def mask_all(trajectory: Trajectory, reason: MaskReason) -> Trajectory:
    """Keep everything that would still be trained from training; what was masked before keeps its reason."""
    masked = Counter(trajectory.masked)
    if rest := int(trajectory.trained.sum()):
        masked[reason] += rest
    return replace(trajectory, trained=np.zeros_like(trajectory.trained), masked=dict(masked))


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of the sampled tokens: sampled == trained + sum(masked.values())."""

    sampled: int
    trained: int
    masked: dict[MaskReason, int]


def delivered(trajectories: Iterable[Trajectory]) -> Delivery:
    """Counts over any number of trajectories, for the report."""
    sampled = trained = 0
    masked: Counter[MaskReason] = Counter()
    for trajectory in trajectories:
        sampled += int(trajectory.sampled.sum())
        trained += int(trajectory.trained.sum())
        masked.update(trajectory.masked)
    assert sampled == trained + masked.total(), "a sampled token is neither trained nor masked"
    return Delivery(sampled, trained, dict(masked))
