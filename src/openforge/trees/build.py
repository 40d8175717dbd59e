"""Trajectories → one `TokenTree`.

Invariant: each distinct prefix is stored once across all trajectories handed in, and every trained token of every trajectory becomes
exactly one contribution. Time and memory are O(the trajectories' own tokens): see `trie.py`.

What no trained token comes behind can influence no loss: it gets no position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from openforge.trees.trie import Trie
from openforge.types import FloatArray, TokenTree, Trajectory, UserError


def build(
    trajectories: Sequence[Trajectory], advantages: Mapping[str, float], weights: Sequence[FloatArray], vocabulary: int | None = None
) -> TokenTree:
    """Merge trajectories into a prefix tree (a forest, where they share no first token).

    Parents that are not among `trajectories` are context. `advantages`: rollout id → advantage. `weights[i]`: float32 [L_i], the loss
    weight of each token of `trajectories[i]`, read where `trained`. `vocabulary`: how many ids the model knows; another id is a `UserError`
    that names rollout and call. Raises `ValueError` naming the rollout when a trained token has no predecessor or a number that is not
    finite.
    """
    used = [(trajectory, weight) for trajectory, weight in zip(trajectories, weights, strict=True) if trajectory.trained.any()]
    for trajectory, weight in used:
        _check_trained(trajectory, advantages[trajectory.rollout_id], weight)
    trie = Trie([trajectory for trajectory, _ in used])
    if vocabulary is not None:
        for trajectory in trie.trajectories:
            _check_ids(trajectory, vocabulary)

    rows: dict[str, int] = {}
    at, targets, versions, row_of = ([np.empty(0, np.int32)] for _ in range(4))
    logprobs, advantage_of, weight_of = ([np.empty(0, np.float32)] for _ in range(3))
    for trajectory, weight in used:
        trained = np.flatnonzero(trajectory.trained).astype(np.int32)
        at.append(trie.positions(trajectory, trajectory.shared + trained - 1))
        targets.append(trajectory.tokens[trained])
        versions.append(trajectory.versions[trained])
        row_of.append(np.full(len(trained), rows.setdefault(trajectory.rollout_id, len(rows)), np.int32))
        logprobs.append(trajectory.logprobs[trained])
        advantage_of.append(np.full(len(trained), advantages[trajectory.rollout_id], np.float32))
        weight_of.append(weight[trained])
    return TokenTree(
        tokens=np.concatenate([np.empty(0, np.int32), *(node.tokens for segment in trie.segments for node in segment)]),
        starts=np.cumsum([0, *(sum(len(node.tokens) for node in segment) for segment in trie.segments)], dtype=np.int32),
        parents=np.array(trie.parents, np.int32),
        depths=np.array([segment[0].depth for segment in trie.segments], np.int32),
        at=np.concatenate(at),
        targets=np.concatenate(targets),
        logprobs=np.concatenate(logprobs),
        versions=np.concatenate(versions),
        advantages=np.concatenate(advantage_of),
        weights=np.concatenate(weight_of),
        rows=np.concatenate(row_of),
        rollout_ids=list(rows),
    )


def _check_trained(trajectory: Trajectory, advantage: float, weight: FloatArray) -> None:
    if trajectory.trained[0] and trajectory.parent is None:
        raise ValueError(f"rollout {trajectory.rollout_id}: its first token is marked as trained, but nothing precedes it")
    numbers = (np.float32(advantage), trajectory.logprobs[trajectory.trained], weight[trajectory.trained])
    if not all(np.isfinite(number).all() for number in numbers):
        raise ValueError(f"rollout {trajectory.rollout_id}: a trained token's log-probability, advantage or weight is not finite")


def _check_ids(trajectory: Trajectory, vocabulary: int) -> None:
    outside = np.flatnonzero((trajectory.tokens < 0) | (trajectory.tokens >= vocabulary))
    if len(outside):
        call = int(np.searchsorted(trajectory.ends, outside[0], side="right"))
        where = f", call {trajectory.call_ids[call]}" if trajectory.call_ids else ""
        raise UserError(
            f"rollout {trajectory.rollout_id}{where}: token id {trajectory.tokens[outside[0]]} is outside the model's vocabulary of "
            f"{vocabulary}: was it sampled from this model?"
        )
