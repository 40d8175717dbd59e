"""Who sees whom in a tree: the one description that every attention backend reads.

Invariant: a position sees its root path and itself, nothing else. Keys are the carried ones (positions computed before, on which the roots
of this tree hang) and behind them the tree's own. Segments are stored depth first, so the queries that see a key are contiguous, and
O(segments) blocks describe all of it: each (query, key) pair that see each other is in exactly one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from openforge.trees.shape import subtree_stops
from openforge.types import IntArray, TokenTree


@dataclass(frozen=True, slots=True)
class Block:
    """Queries `start` … `stop` - 1 see the keys `first` … `last` - 1: all of them, or, if `causal`, query `start + i` the first i + 1."""

    start: int
    stop: int
    first: int
    last: int
    causal: bool


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """N queries, which are also the last N of M keys; the first M - N keys are carried: one path, from position 0 down."""

    carried: int
    starts: IntArray
    """int32 [S + 1], as in `TokenTree`."""
    depths: IntArray
    """int32 [S], as in `TokenTree`: a segment sees the first `depths[s]` positions of its path, and what of itself lies before."""
    blocks: tuple[Block, ...]

    @classmethod
    def of(cls, tree: TokenTree) -> Layout:
        """Roots of depth d see the first d carried keys; they must come in order of falling depth."""
        is_root = tree.parents < 0
        roots, depths = tree.starts[:-1][is_root], tree.depths[is_root]
        assert (np.diff(depths) <= 0).all(), "roots must come in order of falling depth"
        carried = int(depths.max(initial=0))
        blocks = [*_carried_blocks(roots, depths, len(tree.tokens)), *_own_blocks(tree, carried)]
        return cls(carried, tree.starts, tree.depths, tuple(blocks))

    @property
    def length(self) -> int:
        """N."""
        return int(self.starts[-1])

    def queries(self) -> tuple[IntArray, IntArray]:
        """Per key the half-open range of queries that see it: two int32 [M]. Causality is in it: an own key's range begins with itself."""
        first = np.zeros(self.carried + self.length, np.int32)
        last = np.zeros(self.carried + self.length, np.int32)
        for block in self.blocks:
            keys = slice(block.first, block.last)
            first[keys] = block.start + np.arange(block.last - block.first) if block.causal else block.start
            last[keys] = block.stop
        return first, last

    @property
    def pairs(self) -> int:
        """How many (query, key) pairs see each other."""
        return sum(_pairs(block) for block in self.blocks)


def _carried_blocks(roots: IntArray, depths: IntArray, length: int) -> Iterator[Block]:
    """Between two depths at which roots hang, the carried keys are seen by all roots that hang deeper."""
    stops = np.append(roots[1:], length)
    upper = 0
    for depth in np.unique(depths[depths > 0]):
        yield Block(0, int(stops[depths >= depth].max()), upper, int(depth), causal=False)
        upper = int(depth)


def _own_blocks(tree: TokenTree, carried: int) -> Iterator[Block]:
    starts = tree.starts.tolist()
    for start, end, stop in zip(starts[:-1], starts[1:], subtree_stops(tree).tolist(), strict=True):
        yield Block(start, stop, carried + start, carried + end, causal=True)


def _pairs(block: Block) -> int:
    queries, keys = block.stop - block.start, block.last - block.first
    return queries * keys - (keys * (keys - 1) // 2 if block.causal else 0)
