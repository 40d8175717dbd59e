"""Pieces hold a forest once, within the budget, and hang together as its segments do."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from test_layout import segment_tree

from openforge.trees.forward import position_ids
from openforge.trees.layout import Layout
from openforge.trees.partition import Piece, partition
from openforge.types import TokenTree


def numbered(lengths: list[int], parents: list[int]) -> TokenTree:
    """A forest, its segments in depth-first order, whose tokens are its positions; each has a contribution, and the first has two."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + lengths[parent] if parent >= 0 else 0)
    bare = segment_tree(lengths, parents, depths)
    at = np.append(np.arange(sum(lengths)), 0).astype(np.int32)[::-1]
    numbers = np.arange(len(at), dtype=np.float32)
    return dataclasses.replace(
        bare,
        tokens=np.arange(sum(lengths), dtype=np.int32),
        at=at,
        targets=at + 1,
        logprobs=-numbers,
        versions=at * 0,
        advantages=numbers,
        weights=numbers,
        rows=at * 0,
        rollout_ids=["r"],
    )


@st.composite
def shapes(draw: st.DrawFn) -> TokenTree:
    lengths, parents, path = list[int](), list[int](), list[int]()
    for segment in range(draw(st.integers(1, 30))):
        path = path[: draw(st.integers(0, len(path)))]
        parents.append(path[-1] if path else -1)
        lengths.append(draw(st.integers(1, 9)))
        path.append(segment)
    return numbered(lengths, parents)


def chain(length: int) -> TokenTree:
    return numbered([1] * length, list(range(-1, length - 1)))


def fan(leaves: int) -> TokenTree:
    return numbered([3] + [2] * leaves, [-1] + [0] * leaves)


def caterpillar(calls: int, call: int, branch: int) -> TokenTree:
    """Each call extends the one before; behind each hangs a branch that nothing extends."""
    return numbered([call, *[branch, call] * (calls - 1)], [-1, *(p for i in range(calls - 1) for p in (2 * i, 2 * i))])


def paths(tree: TokenTree) -> list[list[int]]:
    """Per position, the tokens of its path."""
    found: list[list[int]] = []
    for segment, (start, end) in enumerate(zip(tree.starts[:-1].tolist(), tree.starts[1:].tolist(), strict=True)):
        parent = int(tree.parents[segment])
        above = found[tree.starts[parent + 1] - 1] if parent >= 0 else []
        for position in range(start, end):
            above = [*above, int(tree.tokens[position])]
            found.append(above)
    return found


def carried_tokens(pieces: list[Piece], piece: Piece) -> list[int]:
    return [int(token) for index, length in piece.carried for token in pieces[index].tree.tokens[:length]]


@given(forest=shapes(), budget=st.integers(1, 60))
@example(forest=chain(40), budget=1)
@example(forest=chain(40), budget=7)
@example(forest=fan(40), budget=1)
@example(forest=fan(40), budget=10)
@example(forest=caterpillar(20, 3, 2), budget=1)
@example(forest=caterpillar(20, 3, 2), budget=16)
def test_pieces_hold_every_position_and_contribution_once_on_its_own_path(forest: TokenTree, budget: int) -> None:
    pieces = partition(forest, budget)
    assert sorted(token for piece in pieces for token in piece.tree.tokens.tolist()) == forest.tokens.tolist()
    assert sorted(c for piece in pieces for c in piece.contributions.tolist()) == list(range(len(forest.at)))
    expected = paths(forest)
    for piece in pieces:
        tree = piece.tree
        above = carried_tokens(pieces, piece)
        assert len(above) == Layout.of(tree).carried
        for own, token, depth in zip(paths(tree), tree.tokens, position_ids(tree), strict=True):
            assert above[: depth + 1 - len(own)] + own == expected[token]
        assert (tree.tokens[tree.at] == forest.at[piece.contributions]).all()
        for name in ("targets", "logprobs", "versions", "advantages", "weights", "rows"):
            assert (getattr(tree, name) == getattr(forest, name)[piece.contributions]).all(), name


@given(forest=shapes(), budget=st.integers(1, 60))
@example(forest=caterpillar(20, 3, 2), budget=1)
@example(forest=fan(40), budget=4)
def test_no_more_than_the_budget_and_the_longest_path_is_alive_on_a_depth_first_walk(forest: TokenTree, budget: int) -> None:
    pieces = partition(forest, budget)
    longest = max(len(path) for path in paths(forest))
    stack: list[int] = []
    for index, piece in enumerate(pieces):
        while stack and stack[-1] != piece.parent:
            stack.pop()
        assert stack or piece.parent < 0, "what a piece hangs on is alive when its turn comes"
        assert {carried for carried, _ in piece.carried} <= set(stack)
        stack.append(index)
        assert len(piece.tree.tokens) <= budget
        assert sum(len(pieces[i].tree.tokens) for i in stack) <= budget + longest


@given(forest=shapes())
def test_a_forest_within_the_budget_is_one_piece_as_it_is(forest: TokenTree) -> None:
    (piece,) = partition(forest, len(forest.tokens))
    for name in ("tokens", "starts", "parents", "depths"):
        assert (getattr(piece.tree, name) == getattr(forest, name)).all()


def test_small_branches_along_a_long_chain_share_pieces() -> None:
    assert [len(piece.tree.tokens) for piece in partition(caterpillar(100, 70, 10), 1000)] == [1000] * 7 + [990]


def test_an_empty_forest_has_no_pieces() -> None:
    assert partition(segment_tree([], [], []), 5) == []
