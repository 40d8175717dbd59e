"""A forest cut into pieces of at most a budget of positions, none of which is computed twice.

Invariant: every position and every contribution is in exactly one piece, and a piece comes behind those that its positions hang on.

Walked depth first, the positions alive at any time are at most the budget plus the longest root-to-leaf path. Proof: every ancestor of a
piece is a trunk, a chain that the next one continues at its end, so together they are a path from a root, no longer than the longest;
the piece itself has at most `budget` positions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from openforge.trees.shape import columns, subtree_stops
from openforge.types import IntArray, TokenTree

Path = tuple[tuple[int, int], ...]
"""(piece, how many of its leading positions), …: joined, they are a path from position 0 down."""
Span = tuple[int, int]
"""Positions from the first up to, but not including, the second."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some positions of a forest, all of which hang on one path of it."""

    tree: TokenTree
    """Its roots see as much of the carried path as lies above their depth; they come in order of falling depth."""
    parent: int
    """The piece with the last carried position, -1 where nothing is carried."""
    carried: Path
    """The path down to where the deepest root hangs."""
    contributions: IntArray
    """int32 [C]: which of the forest's contributions the tree's are."""


@dataclass(frozen=True, slots=True)
class _Subtree:
    """Positions `first` … `stop` - 1: one of `segment`, at `depth`, and all below it."""

    segment: int
    depth: int
    first: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.first


def partition(forest: TokenTree, budget: int) -> list[Piece]:
    """Pieces of at most `budget` positions each, depth first: behind a piece come all that hang on it, then the rest.

    A subtree (or whole tree) within the budget stays whole and shares a piece with others that hang on the same path. Of a larger one,
    the chain along the heaviest branches becomes trunks.
    """
    assert budget > 0
    cutter = _Cutter(forest)
    pieces: list[Piece] = []
    todo: list[tuple[_Subtree, Path, list[_Subtree]]] = []
    path: Path = ()
    below, waiting = cutter.below(-1), list[_Subtree]()
    while True:
        # Small subtrees wait until the deepest trunk on their path is there, so that as many as can be share a piece.
        waiting = waiting + [subtree for subtree in below if subtree.size <= budget]
        large = [subtree for subtree in below if subtree.size > budget]
        todo.extend((subtree, path, [] if i else waiting) for i, subtree in enumerate(reversed(large)))
        if not large:
            pieces.extend(cutter.group(subtrees, path) for subtrees in _groups(waiting, budget))
        if not todo:
            break
        subtree, path, waiting = todo.pop()
        spans, waiting, below = cutter.trunk(subtree, waiting, budget)
        pieces.append(cutter.chain(spans, subtree.depth, path))
        path = (*path, (len(pieces) - 1, len(pieces[-1].tree.tokens)))
    assert _most_alive(pieces) <= budget + cutter.longest
    return pieces


def _groups(subtrees: list[_Subtree], budget: int) -> Iterator[list[_Subtree]]:
    """The deepest first, as many in one group as fit."""
    group: list[_Subtree] = []
    size = 0
    for subtree in sorted(subtrees, key=lambda subtree: -subtree.depth):
        if size + subtree.size > budget:
            yield group
            group, size = [], 0
        group.append(subtree)
        size += subtree.size
    if group:
        yield group


def _most_alive(pieces: Sequence[Piece]) -> int:
    """Positions of a piece and of all that it hangs on, at most."""
    alive: list[int] = []
    for piece in pieces:
        alive.append(len(piece.tree.tokens) + (alive[piece.parent] if piece.parent >= 0 else 0))
    return max(alive, default=0)


class _Cutter:
    """Follows the branches of a forest, and makes pieces of spans of its positions."""

    def __init__(self, forest: TokenTree) -> None:
        self._forest = forest
        self._starts: list[int] = forest.starts.tolist()
        self._stops: list[int] = subtree_stops(forest).tolist()
        self._children: list[list[int]] = [[] for _ in range(len(forest.parents) + 1)]  # the last: the roots, whose parent is -1
        for segment in range(len(forest.parents) - 1, -1, -1):
            self._children[int(forest.parents[segment])].append(segment)
        self._order = np.argsort(forest.at, kind="stable").astype(np.int32)
        self._at = forest.at[self._order]

    @property
    def longest(self) -> int:
        """Positions on the longest root-to-leaf path."""
        return int((self._forest.depths + np.diff(self._forest.starts)).max(initial=0))

    def below(self, segment: int) -> list[_Subtree]:
        """The subtrees that hang on a segment's end; of -1, the trees."""
        depths = self._forest.depths
        return [_Subtree(child, int(depths[child]), self._starts[child], self._stops[child]) for child in reversed(self._children[segment])]

    def trunk(self, subtree: _Subtree, waiting: list[_Subtree], budget: int) -> tuple[list[Span], list[_Subtree], list[_Subtree]]:
        """A subtree's chain along the largest that follow, while the budget lasts and the rest needs more than one piece.

        Where two large subtrees follow it ends: what hangs on a trunk before its end is small. Returns its positions, `waiting` with the
        subtrees that hang on it before its end, and those that hang on its end.
        """
        waiting = list(waiting)
        spans: list[Span] = []
        room, size = budget, sum(other.size for other in waiting) + subtree.size
        while True:
            end = min(self._starts[subtree.segment + 1], subtree.first + room)
            spans.append((subtree.first, end))
            room -= end - subtree.first
            size -= end - subtree.first
            if end < self._starts[subtree.segment + 1]:
                below = [_Subtree(subtree.segment, subtree.depth + end - subtree.first, end, subtree.stop)]
            else:
                below = self.below(subtree.segment)
            if not room or size <= budget or not below or sum(other.size > budget for other in below) > 1:
                return spans, waiting, below
            subtree = max(below, key=lambda other: other.size)
            waiting.extend(other for other in below if other is not subtree)

    def chain(self, spans: list[Span], depth: int, path: Path) -> Piece:
        """The positions of a trunk, which hangs on the end of `path`."""
        length = sum(end - first for first, end in spans)
        return self._piece(spans, np.array([0, length], np.int32), np.array([-1], np.int32), np.array([depth], np.int32), path)

    def group(self, subtrees: list[_Subtree], path: Path) -> Piece:
        """Subtrees that hang on `path`, the deepest first."""
        new_starts, new_parents, new_depths = [np.zeros(1, np.int32)], [], []
        size = segments = 0
        for subtree in subtrees:
            kept = slice(subtree.segment, int(np.searchsorted(self._forest.starts, subtree.stop)))
            new_starts.append(self._forest.starts[kept.start + 1 : kept.stop + 1] + (size - subtree.first))
            new_parents.append(np.append(-1, self._forest.parents[kept][1:] + (segments - kept.start)))
            new_depths.append(np.append(subtree.depth, self._forest.depths[kept][1:]))
            size += subtree.size
            segments += kept.stop - kept.start
        starts, parents, depths = (np.concatenate(arrays, dtype=np.int32) for arrays in (new_starts, new_parents, new_depths))
        return self._piece([(subtree.first, subtree.stop) for subtree in subtrees], starts, parents, depths, path)

    def _piece(self, spans: list[Span], starts: IntArray, parents: IntArray, depths: IntArray, path: Path) -> Piece:
        forest = self._forest
        bounds = np.searchsorted(self._at, spans)
        chosen = np.concatenate([self._order[low:high] for low, high in bounds])
        offsets = np.cumsum([0, *(end - first for first, end in spans)])[:-1] - [first for first, _ in spans]
        carried = _down_to(path, int(depths[0]))
        tree = dataclasses.replace(
            forest,
            tokens=np.concatenate([forest.tokens[first:end] for first, end in spans]),
            starts=starts,
            parents=parents,
            depths=depths,
            at=(forest.at[chosen] + np.repeat(offsets, np.diff(bounds)[:, 0])).astype(np.int32),
            **columns(forest, chosen),
        )
        return Piece(tree, carried[-1][0] if carried else -1, carried, chosen)


def _down_to(path: Path, depth: int) -> Path:
    carried: list[tuple[int, int]] = []
    for piece, length in path:
        if depth > 0:
            carried.append((piece, min(length, depth)))
        depth -= length
    return tuple(carried)
