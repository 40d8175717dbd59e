"""The blocks and ranges of a layout say what a walk up the tree says."""

from __future__ import annotations

import numpy as np
from forest_cases import Forest, forests
from hypothesis import given
from layout_cases import pieces, seen, segment_tree

from openforge.trees.build import build
from openforge.trees.layout import Layout
from openforge.types import IntArray, TokenTree


def from_ranges(first: IntArray, last: IntArray, length: int) -> np.ndarray:
    queries = np.arange(length)[:, None]
    return (first <= queries) & (queries < last)


def from_blocks(layout: Layout) -> np.ndarray:
    times = np.zeros((layout.length, layout.carried + layout.length), int)
    for block in layout.blocks:
        rows, columns = np.arange(block.stop - block.start)[:, None], np.arange(block.last - block.first)
        times[block.start : block.stop, block.first : block.last] += (columns <= rows) | (not block.causal)
    assert times.max(initial=0) <= 1
    return times > 0


def check(tree: TokenTree) -> None:
    layout = Layout.of(tree)
    expected = seen(tree)
    assert layout.carried + layout.length == expected.shape[1]
    assert (from_blocks(layout) == expected).all()
    assert (from_ranges(*layout.queries(), layout.length) == expected).all()
    assert layout.pairs == expected.sum()


@given(forest=forests())
def test_every_position_sees_its_root_path_and_itself(forest: Forest) -> None:
    check(build(forest.trajectories, forest.advantages, forest.weights))


@given(tree=pieces())
def test_roots_see_the_carried_path_down_to_where_they_hang(tree: TokenTree) -> None:
    check(tree)


def test_roots_at_one_depth_share_a_block() -> None:
    assert len(Layout.of(segment_tree([1, 2], [-1, -1], [3, 3])).blocks) == 3
