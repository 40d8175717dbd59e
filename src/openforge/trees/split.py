"""A forest shared between ranks, so that all are done at about the same time.

Invariant: every contribution is in exactly one share, with its whole root path, so that the sum of the shares' gradients is the
gradient of the forest, whatever the number of ranks.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from openforge.trees.cost import Cost
from openforge.trees.shape import columns, leaves
from openforge.types import IntArray, TokenTree

_HALVINGS = 50


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of a forest."""

    tree: TokenTree
    """Empty where there are fewer leaves than ranks."""
    contributions: IntArray
    """int32 [C]: which of the forest's contributions the tree's are."""


def split(forest: TokenTree, ranks: int, cost: Cost) -> list[Share]:
    """One share a rank: contiguous leaves in depth-first order, chosen so that the dearest share is as cheap as it can be.

    A prefix of leaves in several shares is repeated in each, as context without contributions in all but the first. The dearest share
    costs at most an even part of the forest and twice its dearest root-to-leaf path: once for a prefix that is repeated, once for the
    leaf that did not fit.
    """
    if ranks == 1:
        return [Share(forest, np.arange(len(forest.at), dtype=np.int32))]
    ranges = _Ranges(forest, cost)
    low, high = 0.0, ranges.total
    ends = ranges.within(high, ranks)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = ranges.within(middle, ranks)
        low, high, ends = (middle, high, ends) if found is None else (low, middle, found)
    assert ends is not None
    ends += [len(forest.parents)] * (ranks - len(ends))
    return [_share(forest, first, end) for first, end in zip([0, *ends], ends, strict=False)]


class _Ranges:
    """What ranges of leaves cost.

    In depth-first order, the segments that a range of leaves brings are contiguous: those behind the leaf before it, up to its last
    leaf. It also needs the ancestors of the first of them, without their heads.
    """

    def __init__(self, forest: TokenTree, cost: Cost) -> None:
        body = cost.of_segments(np.diff(forest.starts), forest.depths)
        self._above = np.zeros(len(body))
        for segment, parent in enumerate(forest.parents.tolist()):
            if parent >= 0:
                self._above[segment] = self._above[parent] + body[parent]
        self._up_to = np.concatenate([[0.0], np.cumsum(body + cost.of_heads(forest))])
        self._ends = np.flatnonzero(leaves(forest)) + 1
        self.total = float(self._up_to[-1])

    def within(self, most: float, ranks: int) -> list[int] | None:
        """Where up to `ranks` ranges that cost at most `most` each end, as segments; None if there are none. Greedy is best here: a range
        that begins later costs no more."""
        ends = [0]
        while ends[-1] < len(self._above):
            room = most - self._above[ends[-1]] + self._up_to[ends[-1]]
            fitting = int(np.searchsorted(self._up_to[self._ends], room, side="right"))
            if not fitting or self._ends[fitting - 1] <= ends[-1] or len(ends) > ranks:
                return None
            ends.append(int(self._ends[fitting - 1]))
        return ends[1:]


def _share(forest: TokenTree, first: int, stop: int) -> Share:
    """The segments `first` … `stop` - 1 with their contributions, behind the ancestors of the first of them without."""
    ancestors: list[int] = []
    segment = int(forest.parents[first]) if first < stop else -1
    while segment >= 0:
        ancestors.append(segment)
        segment = int(forest.parents[segment])
    kept = np.array([*ancestors[::-1], *range(first, stop)], np.int32)
    index = np.full(len(forest.parents) + 1, -1, np.int32)
    index[kept] = np.arange(len(kept))
    low, high = int(forest.starts[first]), int(forest.starts[stop])
    context = np.concatenate([forest.tokens[:0], *(forest.tokens[forest.starts[s] : forest.starts[s + 1]] for s in ancestors[::-1])])
    chosen = np.flatnonzero((low <= forest.at) & (forest.at < high)).astype(np.int32)
    tree = dataclasses.replace(
        forest,
        tokens=np.append(context, forest.tokens[low:high]),
        starts=np.concatenate([[0], np.cumsum(np.diff(forest.starts)[kept])]).astype(np.int32),
        parents=index[forest.parents[kept]],
        depths=forest.depths[kept],
        at=(forest.at[chosen] + (len(context) - low)).astype(np.int32),
        **columns(forest, chosen),
    )
    return Share(tree, chosen)
