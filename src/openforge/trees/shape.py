"""What a tree's arrays tell of its segments and contributions."""

from __future__ import annotations

from typing import Any

import numpy as np

from openforge.types import BoolArray, IntArray, TokenTree


def leaves(tree: TokenTree) -> BoolArray:
    """Which segments have no children: bool [S]."""
    leaf = np.ones(len(tree.parents), bool)
    leaf[tree.parents[tree.parents >= 0]] = False
    return leaf


def subtree_stops(tree: TokenTree) -> IntArray:
    """Where each segment's subtree ends, one past its last position: int32 [S]."""
    stops = tree.starts[1:].copy()
    for segment in range(len(tree.parents) - 1, -1, -1):
        parent = tree.parents[segment]
        if parent >= 0:
            stops[parent] = max(stops[parent], stops[segment])
    return stops


def segments_of(tree: TokenTree, positions: IntArray) -> IntArray:
    """The segment that each position is in: int32 [n]."""
    segments: IntArray = (np.searchsorted(tree.starts, positions, side="right") - 1).astype(np.int32)
    return segments


def columns(tree: TokenTree, contributions: IntArray) -> dict[str, Any]:
    """Everything but the place of the chosen contributions, by field."""
    return {name: getattr(tree, name)[contributions] for name in ("targets", "logprobs", "versions", "advantages", "weights", "rows")}
