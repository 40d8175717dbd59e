"""Tree or rows, branch by branch: a shared prefix saves its positions, but all that hang on it attend to one block more.

Invariant: the loss stays what it was. A prefix that is no longer shared is repeated before each of its children, and its contributions
stay with the first copy.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from openforge.trees.cost import Cost
from openforge.trees.shape import leaves, levels
from openforge.types import BoolArray, TokenTree


def decide(tree: TokenTree, cost: Cost) -> TokenTree:
    """The same contributions in the cheaper layout: it costs at most what `tree` does, and at most what its rows do.

    From the leaves up, a segment is pushed down into its k children where that pays: it takes k - 1 further copies of the segment, and
    saves its block and the merging of that block into every position beneath it. A root's tree for which rows are cheaper still becomes
    rows. O(segments), beside the copying of the tokens.
    """
    pushed, saved = _push_where_it_pays(tree, cost)
    leaf, root = leaves(tree), np.cumsum(tree.parents < 0) - 1
    lengths = (tree.depths + np.diff(tree.starts))[leaf]
    rows = np.bincount(root[leaf], cost.of_spans(lengths, np.zeros_like(lengths), np.zeros_like(lengths)) + cost.block)
    shared = np.bincount(root, cost.of_segments(tree) - saved)
    return _push(tree, np.where((rows < shared)[root], ~leaf, pushed))


def unshare(tree: TokenTree) -> TokenTree:
    """Rows: every root-to-leaf path is a segment by itself."""
    return _push(tree, ~leaves(tree))


def _push_where_it_pays(tree: TokenTree, cost: Cost) -> tuple[BoolArray, npt.NDArray[np.float64]]:
    """Per segment, whether to push it down, and what that saves."""
    lengths = np.diff(tree.starts).tolist()
    copies = cost.of_spans(np.diff(tree.starts), tree.depths, levels(tree)).tolist()
    children = np.bincount(tree.parents[tree.parents >= 0], minlength=len(lengths)).tolist()
    beneath = [0] * len(lengths)
    pushed, saved = np.zeros(len(lengths), bool), np.zeros(len(lengths))
    for segment in range(len(lengths) - 1, -1, -1):
        saving = cost.block + cost.merge * beneath[segment] - (children[segment] - 1) * copies[segment]
        push = children[segment] > 0 and saving > 0
        if push:
            pushed[segment], saved[segment] = True, saving
        parent = tree.parents[segment]
        if parent >= 0:
            beneath[parent] += beneath[segment] + lengths[segment] * (children[segment] if push else 1)
            children[parent] += children[segment] - 1 if push else 0
    return pushed, saved


def _push(tree: TokenTree, pushed: BoolArray) -> TokenTree:
    """Each segment that is kept, with the pushed ones right above it in front."""
    if not pushed.any():
        return tree
    lengths = np.diff(tree.starts)
    before = np.zeros_like(lengths)
    parents = tree.parents.copy()
    for segment, parent in enumerate(tree.parents.tolist()):
        if parent >= 0 and pushed[parent]:
            before[segment] = before[parent] + lengths[parent]
            parents[segment] = parents[parent]
    kept = np.flatnonzero(~pushed)
    starts = np.concatenate([[0], np.cumsum((before + lengths)[kept])]).astype(np.int32)
    # the first kept segment from a pushed one on is its first copy, for children follow their parent
    owner = np.searchsorted(kept, np.arange(len(lengths)))
    segment_of = np.searchsorted(tree.starts, tree.at, side="right") - 1
    return dataclasses.replace(
        tree,
        tokens=np.concatenate([tree.tokens[span] for segment in kept.tolist() for span in _spans(tree, pushed, segment)]),
        starts=starts,
        parents=np.where(parents[kept] < 0, -1, owner[parents[kept]]).astype(np.int32),
        depths=(tree.depths - before)[kept],
        at=(tree.at - tree.starts[segment_of] + before[segment_of] + starts[owner[segment_of]]).astype(np.int32),
    )


def _spans(tree: TokenTree, pushed: BoolArray, segment: int) -> list[slice]:
    """The positions of a kept segment and of the pushed ones right above it, from the top down."""
    spans = [slice(int(tree.starts[segment]), int(tree.starts[segment + 1]))]
    while (parent := int(tree.parents[segment])) >= 0 and pushed[parent]:
        spans.append(slice(int(tree.starts[parent]), int(tree.starts[parent + 1])))
        segment = parent
    return spans[::-1]
