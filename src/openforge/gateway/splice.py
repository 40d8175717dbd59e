"""Prompt ids out of stored ids and newly rendered text: the heart of token-exact recording.

Invariant: nothing stored is ever tokenised again. A call without a fork begins literally with its parent's prompt and sampled ids; every
other call of a rollout that has earlier calls says why it does not (`types.Fork`).

How: each recorded call leaves two places where a later prompt may go on: behind the messages it was posted with, and behind its own reply
as a client echoes it. A place is found by a hash over tools and canonical messages, so a client may lose the reply's reasoning, re-order
the keys of arguments, swap null and "" or rename tool-call ids, and still continue its own history. The farthest place wins; what lies
behind it is rendered and tokenised. Memory is O(new tokens) a call.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from tokenizers import Tokenizer

from openforge.gateway.formats.base import Format
from openforge.gateway.text import encode
from openforge.gateway.turn import Message, Tool, canonical_arguments
from openforge.types import Fork


@dataclass(eq=False, slots=True)
class Node:
    """A recorded call as its successors need it."""

    id: str
    parent: Node | None
    shared: int
    delta: array[int]
    prompt_length: int
    sampled: array[int] = field(default_factory=lambda: array("i"))
    tool_call_ids: tuple[str, ...] = ()
    extended: int = 0
    """How many calls go on behind its reply."""

    def ids(self, end: int) -> list[int]:
        """The first `end` ids of prompt and reply."""
        pieces = []
        node: Node | None = self
        while node is not None and end > 0:
            for ids, start in ((node.sampled, node.prompt_length), (node.delta, node.shared)):
                if end > start:
                    pieces.append(ids[: end - start])
                    end = start
            node = node.parent
        assert end == 0
        joined: list[int] = []
        for piece in reversed(pieces):
            joined += piece.tolist()
        return joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one call's prompt comes about."""

    parent: Node | None
    shared: int
    delta: list[int]
    prompt_ids: list[int]
    messages_shared: int
    """Leading messages of the request that the parent's record holds, its reply counted."""
    fork: Fork | None
    extends: bool
    """Whether it goes on behind its parent's reply, and so makes others that do branches."""
    prompt_key: bytes
    """Hash of the tools and all messages."""


class Splicer:
    """The lineages of one open rollout."""

    def __init__(self, format: Format, tokenizer: Tokenizer) -> None:
        self._format = format
        self._tokenizer = tokenizer
        self._prompts: dict[bytes, Node] = {}
        self._replies: dict[bytes, list[Node]] = {}
        self._in_flight: dict[bytes, list[Plan]] = {}
        self._started = False

    def plan(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Plan:
        """Prompt ids for a turn. Changes nothing: `begin` does, once the call is really made."""
        keys = _keys(messages, tools)
        key, count = keys[-1], len(messages)
        if (again := self._prompts.get(key)) is not None:
            return self._make(key, again, again.prompt_length, [], count, Fork.RETRY)
        if twins := self._in_flight.get(key):
            first = twins[0]
            return self._make(key, first.parent, first.shared, first.delta, first.messages_shared, Fork.RETRY)
        for at in range(count, 0, -1):
            rest = messages[at:]
            if nodes := self._replies.get(keys[at]):
                node = _best(nodes, messages[at - 1])
                closed = bool(node.sampled) and node.sampled[-1] in self._format.closing_token_ids
                delta = self._encode(self._format.continuation(rest, tools, after=messages[at - 1], closed=closed))
                # Replies we did not sample behind one that was continued already: the client has rewritten what followed.
                taken = Fork.EDITED if any(message.role == "assistant" for message in rest) else Fork.BRANCH
                end = node.prompt_length + len(node.sampled)
                return self._make(key, node, end, delta, at, taken if node.extended else None, extends=True)
            posted = self._prompts.get(keys[at])
            if posted is not None and not _merges(messages[at - 1], messages[at]):
                opening = len(self._encode(self._format.opening(tools, after=messages[at - 1])))
                delta = self._encode(self._format.continuation(rest, tools, after=messages[at - 1], closed=True))
                return self._make(key, posted, posted.prompt_length - opening, delta, at, Fork.EDITED)
        delta = self._encode(self._format.prompt(messages, tools))
        return self._make(key, None, 0, delta, 0, Fork.ROOT if self._started else None)

    def begin(self, plan: Plan) -> None:
        """The call is being made: whoever comes now branches."""
        self._started = True
        self._in_flight.setdefault(plan.prompt_key, []).append(plan)
        if plan.extends:
            assert plan.parent is not None
            plan.parent.extended += 1

    def forget(self, plan: Plan) -> None:
        """The call that was begun has come to nothing and is not recorded."""
        self._end(plan)
        if plan.extends:
            assert plan.parent is not None
            plan.parent.extended -= 1

    def commit(self, plan: Plan, call_id: str, sampled: Sequence[int], reply: Message | None) -> None:
        """The call is durable: later calls may go on behind it. `reply` is None where the client got none that it could echo."""
        self._end(plan)
        node = Node(call_id, plan.parent, plan.shared, array("i", plan.delta), len(plan.prompt_ids), array("i", sampled))
        self._prompts.setdefault(plan.prompt_key, node)
        if reply is not None:
            node.tool_call_ids = tuple(call.id for call in reply.tool_calls)
            self._replies.setdefault(_next_key(plan.prompt_key, reply), []).append(node)

    def _end(self, plan: Plan) -> None:
        twins = self._in_flight[plan.prompt_key]
        twins.remove(plan)
        if not twins:
            del self._in_flight[plan.prompt_key]

    def _encode(self, text: str) -> list[int]:
        return encode(self._tokenizer, text)

    def _make(
        self, key: bytes, parent: Node | None, shared: int, delta: list[int], at: int, fork: Fork | None, *, extends: bool = False
    ) -> Plan:
        return Plan(
            parent=parent,
            shared=shared,
            delta=delta,
            prompt_ids=(parent.ids(shared) if parent is not None else []) + delta,
            messages_shared=at,
            fork=fork,
            extends=extends,
            prompt_key=key,
        )


def _best(nodes: Sequence[Node], echo: Message) -> Node:
    """Of several calls with the same messages and the same reply: the one whose tool-call ids came back, else the last one."""
    ids = tuple(call.id for call in echo.tool_calls)
    return next((node for node in reversed(nodes) if ids and node.tool_call_ids == ids), nodes[-1])


def _merges(before: Message, after: Message) -> bool:
    """A run of tool results is one turn in many formats, so a prompt that ended inside the run cannot be gone on with."""
    return before.role == after.role == "tool"


def _keys(messages: Sequence[Message], tools: Sequence[Tool]) -> list[bytes]:
    """keys[k] stands for the tools and the first k messages."""
    keys = [_digest(b"", [[tool.name, tool.description, tool.parameters] for tool in tools])]
    for message in messages:
        keys.append(_next_key(keys[-1], message))
    return keys


def _next_key(key: bytes, message: Message) -> bytes:
    if message.role != "assistant":
        return _digest(key, [message.role, message.content])
    calls = [[call.name, canonical_arguments(call.arguments)] for call in message.tool_calls]
    return _digest(key, [message.role, message.content.strip(), calls])


def _digest(key: bytes, value: object) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(value, order="sorted"), key=key, digest_size=32).digest()
