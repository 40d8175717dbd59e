"""The calls of a rollout as a forest: who hangs on whom, by what prompts really keep.

Invariant: everything here follows from `parent_id` and what a prompt keeps of its parent's sequence, counted in tokens, or in messages
where an upstream API gave no tokens. Nothing looks at the order of arrival. Parents come before their children in `calls`. Nothing here
puts a whole prompt together: time and memory are O(what the calls store).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from openforge.coordinator.record import ancestry, by_id, damaged
from openforge.types import Call


class Forest:
    """All calls of one rollout, in any order. Calls that do not fit together are a `UserError` that names rollout and call."""

    def __init__(self, calls: Sequence[Call]) -> None:
        assert len({call.rollout_id for call in calls}) <= 1, "calls of several rollouts"
        known = by_id(calls)
        self.depth: dict[str, int] = {}
        """Explicit ancestors."""
        self.root: dict[str, str] = {}
        """The topmost explicit ancestor."""
        for id in known:
            path = ancestry(known, id, self.depth)
            if path[-1] not in self.depth:
                self.depth[path[-1]], self.root[path[-1]] = 0, path[-1]
            for parent, child in zip(path[:0:-1], path[-2::-1], strict=True):
                self.depth[child], self.root[child] = self.depth[parent] + 1, self.root[parent]

        self.calls = {id: known[id] for id in sorted(known, key=lambda id: (self.depth[id], id))}
        self.is_text = not any(call.delta or call.sampled for call in calls)
        """Whether there are messages only; lengths then count those."""
        self.shared = {id: call.request.get("messages_shared", 0) if self.is_text else call.shared for id, call in self.calls.items()}
        """What the prompt keeps of its parent's sequence."""
        self.prompt_length = {id: self.shared[id] + len(self._new(call)) for id, call in self.calls.items()}
        self.length = {id: self.prompt_length[id] + len(self._reply(call)) for id, call in self.calls.items()}
        """Prompt and reply."""
        self.owner: dict[str, str | None] = {}
        """The ancestor that brought the last of what the prompt shares, in its prompt or as its reply; None when it shares nothing."""
        self.anchor: dict[str, str | None] = {}
        """The deepest ancestor of whose reply the prompt keeps at least a token; None when it keeps no reply at all."""
        self.extends: dict[str, bool] = {}
        """Whether the prompt keeps all of its anchor's sequence."""
        self.anchored: dict[str, list[str]] = {id: [] for id in self.calls}
        """The calls of which this one is the anchor."""
        for id, call in self.calls.items():
            self._hang(id, call)

    def _hang(self, id: str, call: Call) -> None:
        kept, owner = self.shared[id], call.parent_id
        there = self.length[owner] if owner is not None else 0
        if not 0 <= kept <= there:
            raise damaged(call, f"it shares {kept} tokens with its parent, which has {there}")
        if not self.prompt_length[id] and call.sampled:
            raise damaged(call, "its reply has no prompt before it")
        while owner is not None and kept <= self.shared[owner]:
            owner = self.owner[owner]
        self.owner[id] = owner
        if owner is None:
            self.anchor[id], self.extends[id] = None, False
        elif kept > self.prompt_length[owner]:
            self.anchor[id], self.extends[id] = owner, kept == self.length[owner]
        else:
            self.anchor[id], self.extends[id] = self.anchor[owner], self.extends[owner]
        if (anchor := self.anchor[id]) is not None:
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

    def prompts(self) -> dict[str, bytes]:
        """Call -> a digest of its prompt: equal for calls with the same prompt, however they share it."""
        cuts = {id: {length} for id, length in self.prompt_length.items()}
        for id, owner in self.owner.items():
            if owner is not None:
                cuts[owner].add(self.shared[id])
        states: dict[tuple[str, int], blake2b] = {}
        for id, call in self.calls.items():
            owner, done, items = self.owner[id], self.shared[id], [*self._new(call), *self._reply(call)]
            state = blake2b(digest_size=16) if owner is None else states[owner, done].copy()
            for cut in sorted(cuts[id]):
                state.update(self._encoded(items[done - self.shared[id] : cut - self.shared[id]]))
                states[id, cut], done = state.copy(), cut
        return {id: states[id, length].digest() for id, length in self.prompt_length.items()}

    def _new(self, call: Call) -> list[Any]:
        return [json.dumps(message, sort_keys=True) for message in call.request.get("messages", ())] if self.is_text else call.delta

    def _reply(self, call: Call) -> list[Any]:
        return [json.dumps(call.response, sort_keys=True)] if self.is_text else call.sampled

    def _encoded(self, items: list[Any]) -> bytes:
        return "\0".join(["", *items]).encode() if self.is_text else np.array(items, np.int32).tobytes()
