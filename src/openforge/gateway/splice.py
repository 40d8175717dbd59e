"""Prompt ids out of stored ids and newly rendered text: the heart of token-exact recording.

Invariant: nothing stored is ever tokenised again. A call without a fork begins literally with its parent's prompt and sampled ids; every
other call of a rollout that has earlier calls says why it does not (`types.Fork`).

How: each recorded call leaves two places where a later prompt may go on: behind the messages it was posted with, and behind its own reply
as a client echoes it. A place is found by a hash over tools and canonical messages, so a client may lose the reply's reasoning, re-order
the keys of arguments or fill in defaults, swap null and "" or rename tool-call ids, and still continue its own history. The farthest
place wins; what lies behind it is rendered and tokenised, with the reasoning that the client lost. Memory is O(new tokens) a call.
"""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
from tokenizers import Tokenizer

from openforge.gateway.arguments import ArgumentStore
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

    def ids(self, end: int) -> array[int]:
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
        joined = array("i")
        for piece in reversed(pieces):
            joined += piece
        return joined


LONG_TEXT = 16_384
"""Characters: a few milliseconds of a tokenizer's work."""


@dataclass(eq=False, kw_only=True)
class Plan:
    """How one call's prompt comes about."""

    parent: Node | None
    shared: int
    text: str
    """What stands behind the parent's `shared` ids."""
    messages_shared: int
    """Leading messages of the request that the parent's record holds, its reply counted."""
    messages: tuple[Message, ...]
    """Those behind them, as they are rendered: with the reasoning that the client lost."""
    fork: Fork | None
    extends: bool
    """Whether it goes on behind its parent's reply, and so makes others that do branches."""
    prompt_key: bytes
    """Hash of the tools and all messages."""
    tokenizer: Tokenizer

    @cached_property
    def delta(self) -> array[int]:
        return array("i", encode(self.tokenizer, self.text))

    @cached_property
    def prompt_ids(self) -> array[int]:
        return self.parent.ids(self.shared) + self.delta if self.parent is not None else self.delta

    async def tokenise(self) -> None:
        """Tokenise a long text now, and where it holds up nobody else."""
        if len(self.text) > LONG_TEXT:
            await asyncio.to_thread(lambda: self.delta)


class Splicer:
    """The lineages of one open rollout."""

    def __init__(self, format: Format, tokenizer: Tokenizer) -> None:
        self._format = format
        self._tokenizer = tokenizer
        self._prompts: dict[bytes, Node] = {}
        self._replies: dict[bytes, list[Node]] = {}
        self._in_flight: dict[bytes, list[Plan]] = {}
        self._reasoning = ReasoningStore()
        self._arguments = ArgumentStore()
        self._started = False

    def plan(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Plan:
        """Where a turn's prompt goes on. Changes nothing: `begin` does, at once if the call is to be made."""
        messages = self._arguments.restore(messages)
        keys = self._keys(messages, tools)
        key, count = keys[-1], len(messages)
        if (again := self._prompts.get(key)) is not None:
            return self._make(key, again, again.prompt_length, "", count, (), Fork.RETRY)
        if twins := self._in_flight.get(key):
            first = twins[0]
            return self._make(key, first.parent, first.shared, first.text, first.messages_shared, first.messages, Fork.RETRY)
        for at in range(count, 0, -1):
            if nodes := self._replies.get(keys[at]):
                rest = self._reasoning.restore(messages[at:])
                node = _best(nodes, messages[at - 1])
                closed = bool(node.sampled) and node.sampled[-1] in self._format.closing_token_ids
                text = self._format.continuation(rest, tools, after=messages[at - 1], closed=closed)
                # Replies we did not sample behind one that was continued already: the client has rewritten what followed.
                taken = Fork.EDITED if any(message.role == "assistant" for message in rest) else Fork.BRANCH
                end = node.prompt_length + len(node.sampled)
                return self._make(key, node, end, text, at, rest, taken if node.extended else None, extends=True)
            posted = self._prompts.get(keys[at])
            if posted is not None and not _merges(messages[at - 1], messages[at]):
                rest = self._reasoning.restore(messages[at:])
                opening = len(encode(self._tokenizer, self._format.opening(tools, after=messages[at - 1])))
                text = self._format.continuation(rest, tools, after=messages[at - 1], closed=True)
                return self._make(key, posted, posted.prompt_length - opening, text, at, rest, Fork.EDITED)
        rest = self._reasoning.restore(messages)
        return self._make(key, None, 0, self._format.prompt(rest, tools), 0, rest, Fork.ROOT if self._started else None)

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
        node = Node(call_id, plan.parent, plan.shared, plan.delta, len(plan.prompt_ids), array("i", sampled))
        self._prompts.setdefault(plan.prompt_key, node)
        if reply is not None:
            node.tool_call_ids = tuple(call.id for call in reply.tool_calls)
            node.reasoning = reasoning_key(reply)
            self._replies.setdefault(_next_key(plan.prompt_key, reply), []).append(node)
            self._reasoning.add(reply)
            self._arguments.add(reply)

    def _end(self, plan: Plan) -> None:
        twins = self._in_flight[plan.prompt_key]
        twins.remove(plan)
        if not twins:
            del self._in_flight[plan.prompt_key]

    def _make(
        self,
        key: bytes,
        parent: Node | None,
        shared: int,
        text: str,
        at: int,
        rest: tuple[Message, ...],
        fork: Fork | None,
        *,
        extends: bool = False,
    ) -> Plan:
        return Plan(
            parent=parent,
            shared=shared,
            text=text,
            messages_shared=at,
            messages=rest,
            fork=fork,
            extends=extends,
            prompt_key=key,
            tokenizer=self._tokenizer,
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


def _best(nodes: Sequence[Node], echo: Message) -> Node:
    """Of several calls with the same messages and the same reply: the one whose tool-call ids or reasoning came back, else the last."""
    ids = tuple(call.id for call in echo.tool_calls)
    reasoning = reasoning_key(echo) if echo.reasoning.strip() else None
    return max(reversed(nodes), key=lambda node: (bool(ids) and node.tool_call_ids == ids, node.reasoning == reasoning))


def _merges(before: Message, after: Message) -> bool:
    """A run of tool results is one turn in many formats, so a prompt that ended inside the run cannot be gone on with."""
    return before.role == after.role == "tool"


def _next_key(key: bytes, message: Message, *, foreign: bool = False) -> bytes:
    if message.role != "assistant":
        return _digest(key, message.role, message.content)
    calls = [[call.name, canonical_arguments(call.arguments)] for call in message.tool_calls]
    return _digest(key, [calls, message.reasoning] if foreign else calls, message.content.strip())


def _digest(key: bytes, value: object, text: str = "") -> bytes:
    # SHA-256, which processors have in hardware: every call hashes the whole history it is posted with.
    head = msgspec.json.encode([value, len(text)], order="sorted")
    return hashlib.sha256(b"".join((key, head, text.encode()))).digest()
