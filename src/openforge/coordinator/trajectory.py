"""Token sequences to train on: calls -> trajectories.

Invariant: every sampled token of every call is in exactly one trajectory, that of its call's lineage, and there it is trained or masked
with a reason: sum(sampled) == sum(trained) + sum(masked). Time and memory are O(what the calls store).

What is masked here: a lost retry (RETRY); an aborted or failed reply that nothing was built on (ABORTED, ERROR); a side call (SIDE),
because the reward judges the agent's work, which a title has no part in; what the trainer cannot compute a loss for (CONTEXT_LENGTH,
NO_LOGPROB). Reasons that come from outside the rollout (no reward, zero variance) are added by `mask`. An aborted reply that a later
prompt goes on from is trained like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from openforge.coordinator.forest import Forest
from openforge.coordinator.lineage import Lineage
from openforge.coordinator.threads import lineages_of
from openforge.types import BoolArray, Call, FinishReason, LineageKind, MaskReason, Trajectory

_MASKED_KINDS = {LineageKind.RETRY: MaskReason.RETRY, LineageKind.SIDE: MaskReason.SIDE}
_MASKED_FINISHES = {FinishReason.ABORTED: MaskReason.ABORTED, FinishReason.ERROR: MaskReason.ERROR}


def trajectories(calls: Sequence[Call], context_length: int | None = None) -> list[Trajectory]:
    """One trajectory a lineage with a sampled token, in lineage order; other lineages are there as parents only.

    `context_length`: the trained model's; what was sampled beyond it is masked. Calls that do not fit together are a `UserError` that
    names rollout and call.
    """
    forest = Forest(calls)
    if forest.is_text:
        return []
    lineages = lineages_of(forest)
    of: dict[str, Trajectory] = {}
    for lineage in sorted(lineages, key=lambda lineage: forest.depth[lineage.call_ids[0]]):
        owner = forest.owner[lineage.call_ids[0]]
        made = _trajectory(forest, lineage, of[owner] if owner is not None else None)
        if context_length is not None:
            made = mask_beyond(made, context_length)
        made = mask(made, MaskReason.NO_LOGPROB, ~np.isfinite(made.logprobs))
        of |= dict.fromkeys(lineage.call_ids, made)
    found = [of[lineage.call_ids[0]] for lineage in lineages]
    return [trajectory for trajectory in found if trajectory.sampled.any()]


def _trajectory(forest: Forest, lineage: Lineage, parent: Trajectory | None) -> Trajectory:
    start = done = forest.shared[lineage.call_ids[0]]
    ids: list[int] = []
    for id in lineage.call_ids:
        ids += [*_passed(forest, id, done), *forest.calls[id].delta, *forest.calls[id].sampled]
        done = forest.length[id]
    sampled, trained = np.zeros(len(ids), np.bool_), np.zeros(len(ids), np.bool_)
    logprobs, versions = np.zeros(len(ids), np.float32), np.full(len(ids), -1, np.int32)
    masked: Counter[MaskReason] = Counter()
    for call in (forest.calls[id] for id in lineage.call_ids):
        reply = slice(forest.prompt_length[call.id] - start, forest.length[call.id] - start)
        sampled[reply], logprobs[reply], versions[reply] = True, call.logprobs, call.versions
        reason = _MASKED_KINDS.get(lineage.kind)
        if reason is None and not forest.anchored[call.id]:
            reason = _MASKED_FINISHES.get(call.finish)
        trained[reply] = reason is None
        if reason is not None and call.sampled:
            masked[reason] += len(call.sampled)
    return Trajectory(
        rollout_id=forest.calls[lineage.call_ids[0]].rollout_id,
        kind=lineage.kind,
        parent=parent,
        shared=start,
        call_ids=lineage.call_ids,
        ends=np.array([forest.length[id] - start for id in lineage.call_ids], np.int32),
        tokens=np.array(ids, np.int32),
        sampled=sampled,
        trained=trained,
        logprobs=logprobs,
        versions=versions,
        masked=dict(masked),
    )


def _passed(forest: Forest, id: str, start: int) -> list[int]:
    """What a call shares beyond `start`: prompt tokens of calls whose replies it does not keep.

    Only the one call that goes on from a reply passes them here, so each is repeated at most once.
    """
    pieces: list[list[int]] = []
    while (stop := forest.shared[id]) > start:
        owner = forest.owner[id]
        assert owner is not None
        pieces.append(forest.calls[owner].delta[: stop - forest.shared[owner]])
        id = owner
    return [token for piece in reversed(pieces) for token in piece]


def mask(trajectory: Trajectory, reason: MaskReason, where: BoolArray | None = None) -> Trajectory:
    """Keep what would be trained, `where` (bool [L]; everywhere if None), from training; what is masked already keeps its reason."""
    lost = trajectory.trained if where is None else trajectory.trained & where
    if not lost.any():
        return trajectory
    masked = Counter(trajectory.masked) + Counter({reason: int(lost.sum())})
    return replace(trajectory, trained=trajectory.trained & ~lost, masked=dict(masked))


def mask_beyond(trajectory: Trajectory, context_length: int) -> Trajectory:
    """Mask what does not fit into the model's context."""
    return mask(trajectory, MaskReason.CONTEXT_LENGTH, trajectory.shared + np.arange(len(trajectory.tokens)) >= context_length)


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
