"""The arguments the model wrote, kept where a client fills in more.

Invariant: a tool call that comes back under its id with all it was sampled with, and perhaps members of the client's own, counts as the
sampled one and is rendered as such; one in which a sampled member was changed or dropped is the client's text and stays so. Memory is
O(replies).

Clients that read arguments through a schema echo its defaults with them: Claude Code adds `replace_all: false` to every edit. Taken for
an edit of history, each of those would fork the lineage.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from openforge.gateway.turn import Message, ToolCall, canonical_arguments


class ArgumentStore:
    """The arguments of one rollout's sampled tool calls, by the calls' ids."""

    def __init__(self) -> None:
        self._sampled: dict[str, str] = {}

    def add(self, reply: Message) -> None:
        self._sampled |= {call.id: call.arguments for call in reply.tool_calls}

    def restore(self, messages: Iterable[Message]) -> tuple[Message, ...]:
        """The messages, members that a client added taken out; the record of such a message says so."""
        return tuple(self._restored(message) for message in messages)

    def _restored(self, message: Message) -> Message:
        calls = tuple(self._as_sampled(call) for call in message.tool_calls)
        return (
            message if calls == message.tool_calls else replace(message, tool_calls=calls, extra={**message.extra, "arguments": "restored"})
        )

    def _as_sampled(self, call: ToolCall) -> ToolCall:
        sampled = self._sampled.get(call.id, call.arguments)
        return replace(call, arguments=sampled) if sampled != call.arguments and _only_adds(call.arguments, sampled) else call


def _only_adds(echoed: str, sampled: str) -> bool:
    try:
        before, after = json.loads(sampled), json.loads(echoed)
    except (ValueError, RecursionError):
        return False
    if not isinstance(before, dict) or not isinstance(after, dict) or len(after) <= len(before):
        return False
    kept = {name: value for name, value in after.items() if name in before}
    return canonical_arguments(json.dumps(kept)) == canonical_arguments(sampled)
