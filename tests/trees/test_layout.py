"""The blocks and ranges of a layout say what a walk up the tree says."""

from __future__ import annotations

import numpy as np
from forest_cases import Forest, forests
from hypothesis import given

from openforge.trees.build import build
from openforge.trees.layout import Layout
from openforge.types import IntArray, TokenTree


def segment_tree(lengths: list[int], parents: list[int], depths: list[int]) -> TokenTree:
    """Tokens without contributions."""
    no_ids, no_numbers = np.empty(0, np.int32), np.empty(0, np.float32)
    starts = np.cumsum([0, *lengths], dtype=np.int32)
    return TokenTree(
        tokens=np.zeros(starts[-1], np.int32),
        starts=starts,
        parents=np.array(parents, np.int32),
        depths=np.array(depths, np.int32),
        at=no_ids,
        targets=no_ids,
        logprobs=no_numbers,
        versions=no_ids,
        advantages=no_numbers,
        weights=no_numbers,
        rows=no_ids,
        rollout_ids=[],
    )


def seen(tree: TokenTree, carried: int) -> np.ndarray:
    """bool [N, M], the slow way."""
    visible = np.zeros((len(tree.tokens), carried + len(tree.tokens)), bool)
    for segment, (start, end) in enumerate(zip(tree.starts[:-1], tree.starts[1:], strict=True)):
        for position in range(start, end):
            visible[position, carried + start : carried + position + 1] = True
            above = segment
            while tree.parents[above] >= 0:
                above = int(tree.parents[above])
                visible[position, carried + tree.starts[above] : carried + tree.starts[above + 1]] = True
            visible[position, : tree.depths[above]] = True
    return visible


def from_ranges(first: IntArray, last: IntArray, length: int) -> np.ndarray:
    queries = np.arange(length)[:, None]
    return (first <= queries) & (queries < last)


def from_blocks(layout: Layout) -> np.ndarray:
    visible = np.zeros((layout.length, layout.carried + layout.length), bool)
    for block in layout.blocks:
        assert visible[block.start : block.stop].any(1).all() != block.fresh
        rows, columns = np.arange(block.stop - block.start)[:, None], np.arange(block.last - block.first)
        visible[block.start : block.stop, block.first : block.last] |= (columns <= rows) | (not block.causal)
    return visible


def check(tree: TokenTree, carried: int) -> None:
    layout = Layout.of(tree)
    expected = seen(tree, carried)
    assert layout.carried == carried
    assert (from_blocks(layout) == expected).all()
    assert (from_ranges(*layout.queries(), layout.length) == expected).all()
    assert layout.pairs == expected.sum()


@given(forest=forests())
def test_every_position_sees_its_root_path_and_itself(forest: Forest) -> None:
    check(build(forest.trajectories, forest.advantages, forest.weights), carried=0)


def test_roots_see_the_carried_path_down_to_where_they_hang() -> None:
    check(segment_tree([2, 1, 3, 2, 4], [-1, 0, 0, -1, -1], [5, 7, 7, 2, 0]), carried=5)
    check(segment_tree([1, 2], [-1, -1], [3, 3]), carried=3)
