"""Several trees → one forest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openforge.types import FloatArray, IntArray, TokenTree


def merge(trees: Sequence[TokenTree]) -> TokenTree:
    """One forest of all trees, in order."""
    if len(trees) == 1:
        return trees[0]
    rows: dict[str, int] = {}
    for tree in trees:
        for rollout_id in tree.rollout_ids:
            rows.setdefault(rollout_id, len(rows))
    positions = np.cumsum([0, *(len(tree.tokens) for tree in trees)], dtype=np.int32)
    segments = np.cumsum([0, *(len(tree.parents) for tree in trees)], dtype=np.int32)

    def join(arrays: Sequence[IntArray]) -> IntArray:
        return np.concatenate([np.empty(0, np.int32), *arrays])

    def column(name: str) -> FloatArray:
        return np.concatenate([np.empty(0, np.float32), *(getattr(tree, name) for tree in trees)], dtype=np.float32)

    return TokenTree(
        tokens=join([tree.tokens for tree in trees]),
        starts=join([*(tree.starts[:-1] + positions[i] for i, tree in enumerate(trees)), positions[-1:]]),
        parents=join([np.where(tree.parents < 0, -1, tree.parents + segments[i]).astype(np.int32) for i, tree in enumerate(trees)]),
        depths=join([tree.depths for tree in trees]),
        at=join([tree.at + positions[i] for i, tree in enumerate(trees)]),
        targets=join([tree.targets for tree in trees]),
        logprobs=column("logprobs"),
        versions=join([tree.versions for tree in trees]),
        advantages=column("advantages"),
        weights=column("weights"),
        rows=join([np.array([rows[i] for i in tree.rollout_ids], np.int32)[tree.rows] for tree in trees]),
        rollout_ids=list(rows),
    )
