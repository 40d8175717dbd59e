"""Trees → micro-batches under a token budget.

Invariant: every contribution is in exactly one micro-batch, with its whole root path, so that the sum of the micro-batches' gradients
is the gradient of the trees, whatever the budget.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openforge.types import FloatArray, IntArray, TokenTree


def pack(trees: Sequence[TokenTree], token_budget: int) -> list[TokenTree]:
    """Forests of at most `token_budget` positions each (a single root-to-leaf path longer than that is one forest by itself).

    Leaves are taken in depth-first order; where a tree does not fit, it is cut between two leaves and the prefix they share is
    repeated in both forests, as context without contributions in the later one. All forests share one `rollout_ids`.
    """
    whole = merge(trees)
    if len(whole.tokens) <= token_budget:
        return [whole] if len(whole.tokens) else []
    return [_select(whole, kept, fresh) for kept, fresh in _cut(whole, token_budget)]


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


def _cut(tree: TokenTree, budget: int) -> list[tuple[IntArray, IntArray]]:
    """Per micro-batch: its segments in order, and which of them no earlier micro-batch holds (those bring their contributions)."""
    lengths = np.diff(tree.starts)
    is_leaf = np.ones(len(tree.parents), bool)
    is_leaf[tree.parents[tree.parents >= 0]] = False
    pieces: list[tuple[IntArray, IntArray]] = []
    kept: list[int] = []
    fresh: list[int] = []
    inside: set[int] = set()
    done: set[int] = set()
    size = 0
    for leaf in np.flatnonzero(is_leaf):
        path: list[int] = []
        segment = int(leaf)
        while segment >= 0:
            path.append(segment)
            segment = int(tree.parents[segment])
        path.reverse()
        new = [s for s in path if s not in inside]
        if kept and size + int(lengths[new].sum()) > budget:
            pieces.append((np.array(kept, np.int32), np.array(fresh, np.int32)))
            kept, fresh, inside, size = [], [], set(), 0
            new = path
        kept.extend(new)
        fresh.extend(s for s in new if s not in done)
        inside.update(new)
        done.update(new)
        size += int(lengths[new].sum())
    pieces.append((np.array(kept, np.int32), np.array(fresh, np.int32)))
    return pieces


def _select(tree: TokenTree, kept: IntArray, fresh: IntArray) -> TokenTree:
    """The forest of the segments `kept`, with the contributions that sit in the segments `fresh`."""
    lengths = np.diff(tree.starts)
    new_index = np.full(len(tree.parents) + 1, -1, np.int32)
    new_index[kept] = np.arange(len(kept), dtype=np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths[kept])]).astype(np.int32)
    segment_of = np.searchsorted(tree.starts, tree.at, side="right") - 1
    chosen = np.flatnonzero(np.isin(segment_of, fresh))
    moved = starts[new_index[segment_of[chosen]]] - tree.starts[segment_of[chosen]]
    return TokenTree(
        tokens=np.concatenate([tree.tokens[tree.starts[s] : tree.starts[s + 1]] for s in kept]),
        starts=starts,
        parents=new_index[tree.parents[kept]],
        depths=tree.depths[kept],
        at=tree.at[chosen] + moved,
        targets=tree.targets[chosen],
        logprobs=tree.logprobs[chosen],
        versions=tree.versions[chosen],
        advantages=tree.advantages[chosen],
        weights=tree.weights[chosen],
        rows=tree.rows[chosen],
        rollout_ids=tree.rollout_ids,
    )
