"""The calls of a rollout as a forest: who hangs on whom, by what prompts really keep.

Invariant: everything here follows from `parent_id` and what a prompt keeps of its parent's sequence, counted in tokens, or in messages
where an upstream API gave no tokens. Nothing looks at the order of arrival. Parents come before their children in `calls`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

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
        self._is_text = not any(call.delta or call.sampled for call in calls)
        self._shared = {id: call.request.get("messages_shared", 0) if self._is_text else call.shared for id, call in self.calls.items()}
        self.prompt_length = {id: self._shared[id] + len(self._new(call)) for id, call in self.calls.items()}
        self.length = {id: self.prompt_length[id] + len(self._reply(call)) for id, call in self.calls.items()}
        """Prompt and reply."""
        self.anchor: dict[str, str | None] = {}
        """The deepest ancestor of whose reply the prompt keeps at least a token; None when it keeps no reply at all."""
        self.extends: dict[str, bool] = {}
        """Whether the prompt keeps all of its anchor's sequence."""
        self.anchored: dict[str, list[str]] = {id: [] for id in self.calls}
        """The calls of which this one is the anchor."""
        for id, call in self.calls.items():
            assert self._shared[id] <= (self.length[call.parent_id] if call.parent_id else 0), f"call {id} shares more than there is"
            anchor, kept = call.parent_id, self._shared[id]
            while anchor is not None and kept <= self.prompt_length[anchor]:
                kept = min(kept, self._shared[anchor])
                anchor = self.calls[anchor].parent_id
            self.anchor[id] = anchor
            self.extends[id] = anchor is not None and kept == self.length[anchor]
            if anchor is not None:
                self.anchored[anchor].append(id)

    def has_tools(self, id: str) -> bool:
        """Whether its prompt offers tools; only a root's record names them."""
        return bool(self.calls[self.root[id]].request.get("tools"))

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

    def prompt(self, id: str) -> tuple[Any, ...]:
        """What the call was made with: equal for calls with the same prompt."""
        return tuple(self._joined(id)[: self.prompt_length[id]])

    def sequence(self, id: str) -> list[int]:
        """Token ids of prompt and reply, put together along the explicit parents."""
        return [] if self._is_text else self._joined(id)

    def _joined(self, id: str) -> list[Any]:
        line = [id]
        while (parent := self.calls[line[-1]].parent_id) is not None:
            line.append(parent)
        found: list[Any] = []
        for call in (self.calls[id] for id in reversed(line)):
            del found[self._shared[call.id] :]
            found += self._new(call)
            found += self._reply(call)
        return found

    def _new(self, call: Call) -> list[Any]:
        return [json.dumps(message, sort_keys=True) for message in call.request.get("messages", ())] if self._is_text else call.delta

    def _reply(self, call: Call) -> list[Any]:
        return [json.dumps(call.response, sort_keys=True)] if self._is_text else call.sampled
