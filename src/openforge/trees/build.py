"""Trajectories → one `TokenTree`.

Invariant: each distinct prefix is stored once across all trajectories handed in, and every trained token of every trajectory becomes
exactly one contribution. Time and memory are O(tokens handed in).

Tokens after a trajectory's last trained token, and that token itself, can influence no loss: they get no position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from openforge.types import FloatArray, IntArray, TokenTree, Trajectory


@dataclass(slots=True)
class _Node:
    tokens: IntArray
    depth: int
    children: dict[int, _Node] = field(default_factory=dict)
    start: int = 0


def build(trajectories: Sequence[Trajectory], advantages: Mapping[str, float], weights: Sequence[FloatArray]) -> TokenTree:
    """Merge trajectories into a prefix tree (a forest, where they share no first token).

    `advantages`: rollout id → advantage. `weights[i]`: float32 [L_i], the loss weight of each token of `trajectories[i]`, read where
    `trained`. Raises `ValueError` naming the rollout when a trained token has no predecessor or a number that is not finite.
    """
    lengths = [_used_length(trajectory) for trajectory in trajectories]
    used = [item for item in zip(trajectories, lengths, weights, strict=True) if item[1]]
    root = _Node(np.empty(0, np.int32), 0)
    for trajectory, length, _ in used:
        _insert(root, np.asarray(trajectory.tokens[:length], np.int32))
    segments, parents = _depth_first(root)
    starts = np.cumsum([0, *(len(node.tokens) for node in segments)], dtype=np.int32)
    for node, start in zip(segments, starts[:-1], strict=True):
        node.start = int(start)

    rows: dict[str, int] = {}
    at, targets, versions, row_of = ([np.empty(0, np.int32)] for _ in range(4))
    logprobs, advantage_of, weight_of = ([np.empty(0, np.float32)] for _ in range(3))
    for trajectory, length, weight in used:
        trained = np.flatnonzero(trajectory.trained)
        advantage = np.full(len(trained), advantages[trajectory.rollout_id], np.float32)
        if not all(np.isfinite(values).all() for values in (trajectory.logprobs[trained], advantage, weight[trained])):
            raise ValueError(f"rollout {trajectory.rollout_id}: a trained token's log-probability, advantage or weight is not finite")
        at.append(_path(root, trajectory.tokens[:length])[trained - 1])
        targets.append(trajectory.tokens[trained])
        versions.append(trajectory.versions[trained])
        row_of.append(np.full(len(trained), rows.setdefault(trajectory.rollout_id, len(rows)), np.int32))
        logprobs.append(trajectory.logprobs[trained])
        advantage_of.append(advantage)
        weight_of.append(weight[trained])
    return TokenTree(
        tokens=np.concatenate([np.empty(0, np.int32), *(node.tokens for node in segments)]),
        starts=starts,
        parents=np.array(parents, np.int32),
        depths=np.array([node.depth for node in segments], np.int32),
        at=np.concatenate(at),
        targets=np.concatenate(targets),
        logprobs=np.concatenate(logprobs),
        versions=np.concatenate(versions),
        advantages=np.concatenate(advantage_of),
        weights=np.concatenate(weight_of),
        rows=np.concatenate(row_of),
        rollout_ids=list(rows),
    )


def _used_length(trajectory: Trajectory) -> int:
    """How many leading tokens can influence the loss: those before the last trained one."""
    trained = np.flatnonzero(trajectory.trained)
    if not len(trained):
        return 0
    if trained[0] == 0:
        raise ValueError(f"rollout {trajectory.rollout_id}: its first token is marked as trained, but nothing precedes it")
    return int(trained[-1])


def _insert(node: _Node, tokens: IntArray) -> None:
    while len(tokens):
        child = node.children.get(int(tokens[0]))
        if child is None:
            node.children[int(tokens[0])] = _Node(tokens, node.depth + len(node.tokens))
            return
        length = min(len(child.tokens), len(tokens))
        different = np.flatnonzero(child.tokens[:length] != tokens[:length])
        shared = int(different[0]) if len(different) else length
        if len(different):
            _split(child, shared)
        elif shared < len(tokens) and not child.children:
            child.tokens = tokens
            return
        node, tokens = child, tokens[shared:]


def _split(node: _Node, length: int) -> None:
    """Keep the first `length` tokens in `node` and hand the rest, with the children, to one new child."""
    rest = _Node(node.tokens[length:], node.depth + length, node.children)
    node.tokens = node.tokens[:length]
    node.children = {int(rest.tokens[0]): rest}


def _depth_first(root: _Node) -> tuple[list[_Node], list[int]]:
    segments: list[_Node] = []
    parents: list[int] = []
    stack = [(child, -1) for child in reversed(root.children.values())]
    while stack:
        node, parent = stack.pop()
        stack.extend((child, len(segments)) for child in reversed(node.children.values()))
        segments.append(node)
        parents.append(parent)
    return segments, parents


def _path(root: _Node, tokens: IntArray) -> IntArray:
    """Position of each token of an inserted sequence: int32 [len(tokens)]."""
    pieces: list[IntArray] = []
    node, done = root, 0
    while done < len(tokens):
        node = node.children[int(tokens[done])]
        length = min(len(node.tokens), len(tokens) - done)
        pieces.append(np.arange(node.start, node.start + length, dtype=np.int32))
        done += length
    return np.concatenate(pieces)
