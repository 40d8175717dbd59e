"""What a tree's parents tell of its segments."""

from __future__ import annotations

import numpy as np

from openforge.types import BoolArray, IntArray, TokenTree


def levels(tree: TokenTree) -> IntArray:
    """How many segments lie above each: int32 [S]."""
    level = np.zeros(len(tree.parents), np.int32)
    for segment, parent in enumerate(tree.parents.tolist()):
        if parent >= 0:
            level[segment] = level[parent] + 1
    return level


def leaves(tree: TokenTree) -> BoolArray:
    """Which segments have no children: bool [S]."""
    leaf = np.ones(len(tree.parents), bool)
    leaf[tree.parents[tree.parents >= 0]] = False
    return leaf
