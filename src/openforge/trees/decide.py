"""Tree or rows, branch by branch: a shared prefix saves its positions, but what hangs on it takes two parts of attention instead of one.

Invariant: the loss stays what it was. A prefix that is no longer shared is repeated before each of its children, and its contributions
stay with the first copy.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from openforge.trees.cost import Cost
from openforge.trees.shape import leaves, segments_of
from openforge.types import BoolArray, TokenTree


def decide(tree: TokenTree, cost: Cost) -> TokenTree:
    """The same contributions in the cheapest layout in which prefixes are unshared from the roots down.

    So it costs at most what `tree` does, in which none is, and at most what its rows do, in which all are. Unsharing one beneath a
    shared one would spare nothing but its own calls, for what hangs on it still has something above. O(segments), beside the copying
    of tokens.
    """
    lengths, leaf = np.diff(tree.starts), leaves(tree)
    # of each segment and all beneath it, with what lies above it shared, and with it repeated in front
    shared = cost.of_segments(lengths, tree.depths).tolist()
    unshared = cost.of_segments(tree.depths + lengths, np.zeros_like(tree.depths)).tolist()
    beneath_shared, beneath_unshared = [0.0] * len(leaf), [0.0] * len(leaf)
    repeated = np.zeros(len(leaf), bool)
    for segment in range(len(leaf) - 1, -1, -1):
        shared[segment] += beneath_shared[segment]
        unshared[segment] += beneath_shared[segment]
        if not leaf[segment] and beneath_unshared[segment] < unshared[segment]:
            repeated[segment], unshared[segment] = True, beneath_unshared[segment]
        parent = tree.parents[segment]
        if parent >= 0:
            beneath_shared[parent] += shared[segment]
            beneath_unshared[parent] += unshared[segment]
    for segment, parent in enumerate(tree.parents.tolist()):
        repeated[segment] &= parent < 0 or repeated[parent]
    return _repeat(tree, repeated)


def unshare(tree: TokenTree) -> TokenTree:
    """Rows: every root-to-leaf path is a segment by itself."""
    return _repeat(tree, ~leaves(tree))


def _repeat(tree: TokenTree, repeated: BoolArray) -> TokenTree:
    """Without the segments `repeated`, which with each hold all above it: they go in front of each segment that hangs on one."""
    if not repeated.any():
        return tree
    alone = (tree.parents < 0) | repeated[tree.parents]
    before = np.where(alone, tree.depths, 0)
    kept = np.flatnonzero(~repeated)
    starts = np.append(0, np.cumsum((before + np.diff(tree.starts))[kept])).astype(np.int32)
    # the first kept segment from a repeated one on holds its first copy, for children follow their parent
    holder = np.searchsorted(kept, np.arange(len(repeated)))
    segment_of = segments_of(tree, tree.at)
    return dataclasses.replace(
        tree,
        tokens=np.concatenate([tree.tokens[span] for segment in kept.tolist() for span in _spans(tree, segment, bool(alone[segment]))]),
        starts=starts,
        parents=np.where(alone, -1, holder[tree.parents])[kept].astype(np.int32),
        depths=(tree.depths - before)[kept],
        at=(tree.at - tree.starts[segment_of] + before[segment_of] + starts[holder[segment_of]]).astype(np.int32),
    )


def _spans(tree: TokenTree, segment: int, alone: bool) -> list[slice]:
    """A segment's positions, behind those of all above it if it stands alone."""
    spans = [slice(int(tree.starts[segment]), int(tree.starts[segment + 1]))]
    while alone and (segment := int(tree.parents[segment])) >= 0:
        spans.append(slice(int(tree.starts[segment]), int(tree.starts[segment + 1])))
    return spans[::-1]
