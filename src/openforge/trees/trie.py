"""The compressed trie of token sequences that hang on each other.

Invariant: each distinct prefix is there once. A trajectory is put in behind the place where it leaves its parent and compared only with
what hangs there: no token of the parent is looked at again. Time and memory are O(the trajectories' own tokens); what runs in Python is
O(trajectories + nodes on their own parts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from openforge.types import IntArray, Trajectory


@dataclass(slots=True, eq=False)
class Node:
    """A run of tokens. Splitting leaves this object at the lower end, so that whoever remembers it finds every place above by climbing."""

    tokens: IntArray
    depth: int
    """Of its first token."""
    parent: Node | None = field(default=None, repr=False)
    children: dict[int, Node] = field(default_factory=dict, repr=False)
    """By first token."""
    start: int = 0
    """Position of its first token."""

    def above(self, depth: int) -> Node:
        """The node at or above this one that has the last token before `depth`."""
        node = self
        while node.depth >= depth:
            assert node.parent is not None
            node = node.parent
        return node

    def insert(self, depth: int, tokens: IntArray) -> Node:
        """Put tokens behind the place `depth`, inside or at the end of this node. Returns the node that has the last of them."""
        node = self
        while len(tokens):
            if depth == node.depth + len(node.tokens):
                child = node.children.get(int(tokens[0]))
                if child is None:
                    node.children[int(tokens[0])] = child = Node(tokens, depth, node)
                    return child
                node = child
            there = node.tokens[depth - node.depth :]
            common = min(len(there), len(tokens))
            different = np.flatnonzero(there[:common] != tokens[:common])
            common = int(different[0]) if len(different) else common
            depth, tokens = depth + common, tokens[common:]
            if len(tokens) and common < len(there):
                node = node._split(depth)
        return node

    def _split(self, depth: int) -> Node:
        """Hand the tokens before `depth` to a new node above this one."""
        assert self.parent is not None
        length = depth - self.depth
        upper = Node(self.tokens[:length], self.depth, self.parent, {int(self.tokens[length]): self})
        self.parent.children[int(self.tokens[0])] = upper
        self.tokens, self.depth, self.parent = self.tokens[length:], depth, upper
        return upper


class Trie:
    """The tokens that trained ones depend on: those before them on their paths, whoever brought them."""

    def __init__(self, trained: Sequence[Trajectory]) -> None:
        """`trained`: trajectories with a trained token; their parents are taken along."""
        self.trajectories = _parents_first(trained)
        lengths = _needed(self.trajectories, set(trained))
        root = Node(np.empty(0, np.int32), 0)
        self._ends: dict[Trajectory, Node] = {}
        """What has the last needed token of each."""
        places: dict[Trajectory, Node] = {}
        """What has the last place that was looked for on each; the next one is above."""
        for trajectory in self.trajectories:
            node, parent = root, trajectory.parent
            if parent is not None:
                assert parent.shared < trajectory.shared <= parent.shared + len(parent.tokens), "it leaves its parent outside of it"
                node = places[parent] = places[parent].above(trajectory.shared)
            end = node.insert(trajectory.shared, trajectory.tokens[: lengths[trajectory]])
            self._ends[trajectory] = places[trajectory] = end
        self.segments: list[list[Node]] = []
        """Runs without a branch, depth first."""
        self.parents: list[int] = []
        """Of each segment, the one above; -1 for a root."""
        self._lay_out(root)

    def positions(self, trajectory: Trajectory, indices: IntArray) -> IntArray:
        """Where tokens of a trajectory's whole sequence are: its own needed ones, and the last one it shares.

        `indices`: int32 [n], ascending, n > 0.
        """
        nodes = [self._ends[trajectory].above(int(indices[-1]) + 1)]
        while nodes[-1].depth > indices[0]:
            nodes.append(nodes[-1].above(nodes[-1].depth))
        depths, starts = (np.array([getattr(node, name) for node in reversed(nodes)], np.int32) for name in ("depth", "start"))
        which = np.searchsorted(depths, indices, side="right") - 1
        positions: IntArray = (starts[which] + indices - depths[which]).astype(np.int32)
        return positions

    def _lay_out(self, root: Node) -> None:
        position = 0
        stack = [(child, -1) for child in reversed(root.children.values())]
        while stack:
            node, parent = stack.pop()
            segment = [node]
            while len(segment[-1].children) == 1:
                segment.extend(segment[-1].children.values())
            for node in segment:
                node.start, position = position, position + len(node.tokens)
            stack.extend((child, len(self.segments)) for child in reversed(segment[-1].children.values()))
            self.segments.append(segment)
            self.parents.append(parent)


def _parents_first(trained: Sequence[Trajectory]) -> list[Trajectory]:
    """With all ancestors, by generation. Of those with one parent, what leaves it last comes first: each place is then above the last."""
    generation: dict[Trajectory, int] = {}
    for trajectory in trained:
        line: list[Trajectory] = []
        above: Trajectory | None = trajectory
        while above is not None and above not in generation:
            line.append(above)
            above = above.parent
        for below in reversed(line):
            generation[below] = generation[below.parent] + 1 if below.parent is not None else 0
    return sorted(generation, key=lambda trajectory: (generation[trajectory], -trajectory.shared))


def _needed(parents_first: Sequence[Trajectory], trained: set[Trajectory]) -> dict[Trajectory, int]:
    """How many of a trajectory's own tokens some trained token depends on."""
    lengths = dict.fromkeys(parents_first, 0)
    for trajectory in reversed(parents_first):
        if trajectory in trained:
            lengths[trajectory] = max(lengths[trajectory], int(np.flatnonzero(trajectory.trained)[-1]))
        if (parent := trajectory.parent) is not None:
            lengths[parent] = max(lengths[parent], trajectory.shared - parent.shared)
    return lengths
