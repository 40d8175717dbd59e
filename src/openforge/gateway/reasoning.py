"""What the model thought, kept where a client may lose it.

Invariant: a reply that comes back without its reasoning gets back exactly what was sampled; one that comes back with other reasoning is the
client's text and stays so. Memory is O(replies).

Many clients do not carry reasoning: ChatOpenAI of LangChain knows no such field, others drop thinking that is not signed. The ids that were
sampled hold it anyway; this store serves the prompts that must be rendered anew, after an edit or a compaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

import msgspec

from openforge.gateway.turn import Message, canonical_arguments

Key = str | bytes


class ReasoningStore:
    """The reasoning of one rollout's replies, found by a tool call's id or by what the reply said and called."""

    def __init__(self) -> None:
        self._found: dict[Key, str] = {}
        self._known: set[tuple[bytes, bytes]] = set()

    def add(self, reply: Message) -> None:
        """Remember a sampled reply. Of equal replies without a tool call's id, the last one counts."""
        if reply.reasoning:
            self._found |= dict.fromkeys(_keys(reply), reply.reasoning)
            self._known.add((_said(reply), reasoning_key(reply)))

    def restore(self, messages: Iterable[Message]) -> tuple[Message, ...]:
        """The messages, lost reasoning put back; the record of such a message says so."""
        return tuple(self._restored(message) for message in messages)

    def knows(self, message: Message) -> bool:
        """Whether the model once wrote this reply with this reasoning."""
        return (_said(message), reasoning_key(message)) in self._known

    def _restored(self, message: Message) -> Message:
        if message.role != "assistant" or message.reasoning.strip() or not self._found:
            return message
        reasoning = next((self._found[key] for key in _keys(message) if key in self._found), None)
        return message if reasoning is None else replace(message, reasoning=reasoning, extra={**message.extra, "reasoning": "restored"})


def reasoning_key(message: Message) -> bytes:
    """Stands for a message's reasoning, in which white space does not count."""
    return _digest(" ".join(message.reasoning.split()))


def _keys(message: Message) -> Iterator[Key]:
    yield from (call.id for call in message.tool_calls if call.id)
    yield _said(message)


def _said(message: Message) -> bytes:
    return _digest([message.content.strip(), [[call.name, canonical_arguments(call.arguments)] for call in message.tool_calls]])


def _digest(value: object) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(value), digest_size=16).digest()
