"""The calls of a rollout as a forest: who hangs on whom, by what prompts really keep.

Invariant: everything here follows from `parent_id`, `shared` and lengths; token ids are touched by `sequence` alone, and nothing looks at
the order of arrival. Parents come before their children in `calls`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from openforge.types import Call


class Forest:
    """All calls of one rollout, in any order. A parent that is missing or of another rollout is an AssertionError."""

    def __init__(self, calls: Sequence[Call]) -> None:
        by_id = {call.id: call for call in calls}
        assert len(by_id) == len(calls), "a call is there twice"
        assert len({call.rollout_id for call in calls}) <= 1, "calls of several rollouts"
        self.depth: dict[str, int] = {}
        """Explicit ancestors."""
        self.root: dict[str, str] = {}
        """The topmost explicit ancestor."""
        for id in by_id:
            path = [id]
            while path[-1] not in self.depth and (parent := by_id[path[-1]].parent_id) is not None:
                assert parent in by_id, f"call {path[-1]}: its parent {parent} is missing"
                path.append(parent)
            if path[-1] not in self.depth:
                self.depth[path[-1]], self.root[path[-1]] = 0, path[-1]
            for parent, child in zip(path[:0:-1], path[-2::-1], strict=True):
                self.depth[child], self.root[child] = self.depth[parent] + 1, self.root[parent]

        self.calls = {id: by_id[id] for id in sorted(by_id, key=lambda id: (self.depth[id], id))}
        self.prompt_length = {id: call.shared + len(call.delta) for id, call in self.calls.items()}
        self.length = {id: self.prompt_length[id] + len(call.sampled) for id, call in self.calls.items()}
        """Prompt and reply."""
        self.anchor: dict[str, str | None] = {}
        """The deepest ancestor of whose reply the prompt keeps at least a token; None when it keeps no reply at all."""
        self.extends: dict[str, bool] = {}
        """Whether the prompt keeps all of its anchor's sequence."""
        self.anchored: dict[str, list[str]] = {id: [] for id in self.calls}
        """The calls of which this one is the anchor."""
        for id, call in self.calls.items():
            assert call.shared <= (self.length[call.parent_id] if call.parent_id else 0), f"call {id} shares more than there is"
            anchor, kept = call.parent_id, call.shared
            while anchor is not None and kept <= self.prompt_length[anchor]:
                kept = min(kept, self.calls[anchor].shared)
                anchor = self.calls[anchor].parent_id
            self.anchor[id] = anchor
            self.extends[id] = anchor is not None and kept == self.length[anchor]
            if anchor is not None:
                self.anchored[anchor].append(id)

    def weights(self, leave_out: Collection[str]) -> dict[str, int]:
        """How many calls hang on each, itself included, not counting those left out."""
        weights = {id: int(id not in leave_out) for id in self.calls}
        for id in reversed(self.calls):
            anchor = self.anchor[id]
            if anchor is not None:
                weights[anchor] += weights[id]
        return weights

    def path(self, id: str) -> list[str]:
        """The calls of whose replies this call's sequence holds something, the oldest first, itself last."""
        path = [id]
        while (anchor := self.anchor[path[-1]]) is not None:
            path.append(anchor)
        return path[::-1]

    def sequence(self, id: str) -> list[int]:
        """Prompt and reply, put together along the explicit parents."""
        line = [id]
        while (parent := self.calls[line[-1]].parent_id) is not None:
            line.append(parent)
        tokens: list[int] = []
        for call in (self.calls[id] for id in reversed(line)):
            del tokens[call.shared :]
            tokens += call.delta
            tokens += call.sampled
        return tokens
