"""What a tree's parents tell of its segments."""

from __future__ import annotations

import numpy as np

from openforge.types import BoolArray, TokenTree


def leaves(tree: TokenTree) -> BoolArray:
    """Which segments have no children: bool [S]."""
    leaf = np.ones(len(tree.parents), bool)
    leaf[tree.parents[tree.parents >= 0]] = False
    return leaf
