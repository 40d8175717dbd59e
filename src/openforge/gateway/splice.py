"""Prompt ids out of stored ids and newly rendered text: the heart of token-exact recording.

Invariant: nothing stored is ever tokenised again. A call without a fork begins literally with its parent's prompt and sampled ids; every
other call of a rollout that has earlier calls says why it does not (`types.Fork`).

How: each recorded call leaves two places where a later prompt may go on: behind the messages it was posted with, and behind its own reply
as a client echoes it. A place is found by a hash over tools and canonical messages, so a client may lose the reply's reasoning, re-order
the keys of arguments, swap null and "" or rename tool-call ids, and still continue its own history. The farthest place wins; what lies
behind it is rendered and tokenised, with the reasoning that the client lost. Memory is O(new tokens) a call.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from tokenizers import Tokenizer

from openforge.gateway.formats.base import Format
from openforge.gateway.reasoning import ReasoningStore, reasoning_key
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
    reasoning: bytes = b""
    """Stands for the reply's reasoning."""
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
    messages: tuple[Message, ...]
    """Those behind them, as they are rendered: with the reasoning that the client lost."""
    fork: Fork | None
    prompt_key: bytes
    """Hash of the tools and all messages."""


class Splicer:
    """The lineages of one open rollout."""

    def __init__(self, format: Format, tokenizer: Tokenizer) -> None:
        self._format = format
        self._tokenizer = tokenizer
        self._tail = len(encode(tokenizer, format.continuation((), (), closed=True)))
        """Ids between the last message and the reply; behind a prompt less these, further messages go on as behind any closed message."""
        self._prompts: dict[bytes, Node] = {}
        self._replies: dict[bytes, list[Node]] = {}
        self._in_flight: dict[bytes, list[Plan]] = {}
        self._reasoning = ReasoningStore()
        self._started = False

    def plan(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Plan:
        """Prompt ids for a turn. Changes nothing: `begin` does, once the call is really made."""
        keys = self._keys(messages, tools)
        key, count = keys[-1], len(messages)
        if (again := self._prompts.get(key)) is not None:
            return self._make(key, again, again.prompt_length, [], count, (), Fork.RETRY)
        if twins := self._in_flight.get(key):
            first = twins[0]
            return self._make(key, first.parent, first.shared, first.delta, first.messages_shared, first.messages, Fork.RETRY)
        for at in range(count, 0, -1):
            if nodes := self._replies.get(keys[at]):
                rest = self._reasoning.restore(messages[at:])
                node = _best(nodes, messages[at - 1])
                closed = bool(node.sampled) and node.sampled[-1] == self._format.stop_token_ids[0]
                delta = self._encode(self._format.continuation(rest, tools, closed=closed))
                # Replies we did not sample behind one that was continued already: the client has rewritten what followed.
                taken = Fork.EDITED if any(message.role == "assistant" for message in rest) else Fork.BRANCH
                return self._make(key, node, node.prompt_length + len(node.sampled), delta, at, rest, taken if node.extended else None)
            posted = self._prompts.get(keys[at])
            if posted is not None and not _merges(messages[at - 1], messages[at]):
                rest = self._reasoning.restore(messages[at:])
                delta = self._encode(self._format.continuation(rest, tools, closed=True))
                return self._make(key, posted, posted.prompt_length - self._tail, delta, at, rest, Fork.EDITED)
        rest = self._reasoning.restore(messages)
        delta = self._encode(self._format.prompt(rest, tools))
        return self._make(key, None, 0, delta, 0, rest, Fork.ROOT if self._started else None)

    def begin(self, plan: Plan) -> None:
        """The call is being made: whoever comes now branches."""
        self._started = True
        self._in_flight.setdefault(plan.prompt_key, []).append(plan)
        if _extends(plan):
            assert plan.parent is not None
            plan.parent.extended += 1

    def forget(self, plan: Plan) -> None:
        """The call that was begun has come to nothing and is not recorded."""
        self._end(plan)
        if _extends(plan):
            assert plan.parent is not None
            plan.parent.extended -= 1

    def commit(self, plan: Plan, call_id: str, sampled: Sequence[int], reply: Message | None) -> None:
        """The call is durable: later calls may go on behind it. `reply` is None where the client got none that it could echo."""
        self._end(plan)
        node = Node(call_id, plan.parent, plan.shared, array("i", plan.delta), len(plan.prompt_ids), array("i", sampled))
        self._prompts.setdefault(plan.prompt_key, node)
        if reply is not None:
            node.tool_call_ids = tuple(call.id for call in reply.tool_calls)
            node.reasoning = reasoning_key(reply)
            self._replies.setdefault(_next_key(plan.prompt_key, reply), []).append(node)
            self._reasoning.add(reply)

    def _end(self, plan: Plan) -> None:
        twins = self._in_flight[plan.prompt_key]
        twins.remove(plan)
        if not twins:
            del self._in_flight[plan.prompt_key]

    def _encode(self, text: str) -> list[int]:
        return encode(self._tokenizer, text)

    def _make(
        self, key: bytes, parent: Node | None, shared: int, delta: list[int], at: int, rest: tuple[Message, ...], fork: Fork | None
    ) -> Plan:
        prompt_ids = (parent.ids(shared) if parent is not None else []) + delta
        return Plan(
            parent=parent,
            shared=shared,
            delta=delta,
            prompt_ids=prompt_ids,
            messages_shared=at,
            messages=rest,
            fork=fork,
            prompt_key=key,
        )

    def _keys(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[bytes]:
        """keys[k] stands for the tools and the first k messages. Reasoning counts only where it is the client's own."""
        keys = [_digest(b"", [[tool.name, tool.description, tool.parameters] for tool in tools])]
        for message in messages:
            key = _next_key(keys[-1], message)
            keys.append(_next_key(keys[-1], message, foreign=True) if self._is_foreign(message, key) else key)
        return keys

    def _is_foreign(self, message: Message, key: bytes) -> bool:
        """Whether the reasoning a client sends is not what the model wrote there; none at all is merely lost."""
        if not message.reasoning.strip():
            return False
        if nodes := self._replies.get(key):
            return all(node.reasoning != reasoning_key(message) for node in nodes)
        return not self._reasoning.knows(message)


def _extends(plan: Plan) -> bool:
    return plan.parent is not None and plan.shared == plan.parent.prompt_length + len(plan.parent.sampled) and plan.fork != Fork.RETRY


def _best(nodes: Sequence[Node], echo: Message) -> Node:
    """Of several calls with the same messages and reply: the one whose tool-call ids came back, or whose reasoning, else the last."""
    ids = tuple(call.id for call in echo.tool_calls)
    reasoning = reasoning_key(echo) if echo.reasoning.strip() else None
    return max(reversed(nodes), key=lambda node: (bool(ids) and node.tool_call_ids == ids, node.reasoning == reasoning))


def _merges(before: Message, after: Message) -> bool:
    """A run of tool results is one turn in many formats, so a prompt that ended inside the run cannot be gone on with."""
    return before.role == after.role == "tool"


def _next_key(key: bytes, message: Message, *, foreign: bool = False) -> bytes:
    if message.role != "assistant":
        return _digest(key, [message.role, message.content])
    calls = [[call.name, canonical_arguments(call.arguments)] for call in message.tool_calls]
    return _digest(key, [message.role, message.content.strip(), calls, *([message.reasoning] if foreign else [])])


def _digest(key: bytes, value: object) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(value, order="sorted"), key=key, digest_size=32).digest()
