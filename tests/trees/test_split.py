"""Shares hold every contribution once, with its path, and the dearest is as cheap as it can be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from forest_cases import Forest, forests
from hypothesis import given
from hypothesis import strategies as st
from test_cost import COST

from openforge.trees.build import build
from openforge.trees.cost import Cost
from openforge.trees.split import Share, split
from openforge.types import TokenTree


def path(tree: TokenTree, position: int) -> list[int]:
    """The tokens from the root down to a position."""
    segment = int(np.searchsorted(tree.starts, position, side="right")) - 1
    tokens = tree.tokens[tree.starts[segment] : position + 1].tolist()
    while (segment := int(tree.parents[segment])) >= 0:
        tokens = tree.tokens[tree.starts[segment] : tree.starts[segment + 1]].tolist() + tokens
    return tokens


def contributions(tree: TokenTree) -> list[tuple[object, ...]]:
    """All there is to know of each: its context, its target, its numbers."""
    columns = (tree.targets, tree.logprobs, tree.versions, tree.advantages, tree.weights, tree.rows)
    values = zip(*(column.tolist() for column in columns), strict=True)
    return [(tuple(path(tree, int(at))), *value) for at, value in zip(tree.at, values, strict=True)]


def dearest(shares: list[Share], cost: Cost) -> float:
    return max(cost.of_tree(share.tree) for share in shares)


def check_segments(tree: TokenTree) -> None:
    lengths = np.diff(tree.starts)
    for segment, parent in enumerate(tree.parents.tolist()):
        assert parent < segment
        assert tree.depths[segment] == (tree.depths[parent] + lengths[parent] if parent >= 0 else 0)


@given(forest=forests(), ranks=st.integers(1, 5))
def test_every_contribution_is_in_one_share_with_its_path(forest: Forest, ranks: int) -> None:
    tree = build(forest.trajectories, forest.advantages, forest.weights)
    shares = split(tree, ranks, COST)
    assert len(shares) == ranks
    assert sorted(np.concatenate([share.contributions for share in shares])) == list(range(len(tree.at)))
    expected = contributions(tree)
    for share in shares:
        check_segments(share.tree)
        assert contributions(share.tree) == [expected[i] for i in share.contributions]


@given(forest=forests(), ranks=st.integers(2, 4), price=st.sampled_from(["position", "pair", "head_row", "call", "merge"]))
def test_no_other_cut_between_leaves_has_a_cheaper_dearest_share(forest: Forest, ranks: int, price: str) -> None:
    tree = build(forest.trajectories, forest.advantages, forest.weights)
    cost = Cost(**{**dict.fromkeys(("position", "pair", "head_row", "call", "merge", "piece"), 0.0), price: 1.0, "position": 1.0})
    ends = [s + 1 for s in range(len(tree.parents)) if s not in tree.parents]
    best = min(
        (
            max(range_cost(tree, cost, first, end) for first, end in itertools.pairwise([0, *cuts, len(tree.parents)]))
            for cuts in itertools.combinations_with_replacement(ends, ranks - 1)
        ),
        default=0.0,
    )
    found = dearest(split(tree, ranks, cost), cost)
    assert found == pytest.approx(best, rel=1e-9)
    if len(tree.parents):
        longest = max(range_cost(tree, cost, end - 1, end) for end in ends)
        assert found <= cost.of_tree(tree) / ranks + 2 * longest + 1e-9


def range_cost(tree: TokenTree, cost: Cost, first: int, end: int) -> float:
    """Of the segments `first` … `end` - 1 and all that lies above them, the slow way; heads of the former only."""
    kept = set(range(first, end))
    for segment in range(first, end):
        while (segment := int(tree.parents[segment])) >= 0:
            kept.add(segment)
    body, heads = cost.of_segments(np.diff(tree.starts), tree.depths), cost.of_heads(tree)
    return float(sum(body[s] for s in kept) + heads[first:end].sum())
