"""A reply as it grows: the events a parser emits, and the message they add up to.

Invariant: the message is exactly the sum of the events, so a streamed reply and a plain one cannot differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import Struct

from openforge.gateway.turn import Message, ToolCall
from openforge.types import Call, FinishReason


# Structs, for there is one a token, and a frozen dataclass takes four times as long to make.
class TextDelta(Struct, frozen=True):
    text: str


class ReasoningDelta(Struct, frozen=True):
    text: str


class ToolCallDelta(Struct, frozen=True):
    """A piece of the reply's tool call number `index`. Its first delta carries id and name, any later one only more argument text."""

    index: int
    id: str | None
    name: str | None
    arguments: str


ReplyEvent = TextDelta | ReasoningDelta | ToolCallDelta
ReplyPart = TextDelta | ReasoningDelta | ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one call."""

    prompt_tokens: int
    cached_tokens: int = 0
    """Of these, tokens that the rollout's earlier calls hold already."""
    sampled_tokens: int = 0
    reasoning_tokens: int = 0
    """Of the sampled ones, tokens that became reasoning."""


def usage_of(call: Call) -> Usage:
    """Of a recorded call: counted where the ids are there, else as the upstream told, else 0."""
    if call.upstream:
        return Usage(**{"prompt_tokens": 0, **call.upstream.get("usage", {})})
    return Usage(prompt_tokens=call.shared + len(call.delta), cached_tokens=call.shared, sampled_tokens=len(call.sampled))


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a complete reply ended."""

    finish: FinishReason
    """STOP or LENGTH."""
    usage: Usage
    stop: str | None = None
    """The stop string that ended it, if one did."""


class Reply:
    """Adds events up: to parts in the order they were written, and to a message."""

    def __init__(self) -> None:
        self._parts: list[tuple[ReplyEvent, list[str]]] = []
        """The first event of each part, and the text of all its events."""
        self._calls: list[list[str]] = []
        """The argument texts of each call; the same lists as in `_parts`."""

    def add(self, events: Iterable[ReplyEvent]) -> None:
        for event in events:
            if isinstance(event, ToolCallDelta):
                if event.index == len(self._calls):
                    assert event.id is not None
                    assert event.name is not None
                    self._calls.append([])
                    self._parts.append((event, self._calls[-1]))
                self._calls[event.index].append(event.arguments)
            else:
                if not self._parts or type(self._parts[-1][0]) is not type(event):
                    self._parts.append((event, []))
                self._parts[-1][1].append(event.text)

    def parts(self) -> tuple[ReplyPart, ...]:
        """The reply in the order it was written in, each run of text, each run of reasoning and each call in one piece."""
        return tuple(_part(first, "".join(texts)) for first, texts in self._parts)

    def events(self) -> list[ReplyEvent]:
        """The fewest events that add up to the same reply."""
        index = itertools.count()
        return [
            ToolCallDelta(next(index), part.id, part.name, part.arguments) if isinstance(part, ToolCall) else part for part in self.parts()
        ]

    def message(self) -> Message:
        parts = self.parts()
        return Message(
            role="assistant",
            content="".join(part.text for part in parts if isinstance(part, TextDelta)),
            reasoning="".join(part.text for part in parts if isinstance(part, ReasoningDelta)),
            tool_calls=tuple(part for part in parts if isinstance(part, ToolCall)),
        )


def _part(first: ReplyEvent, text: str) -> ReplyPart:
    if isinstance(first, ToolCallDelta):
        assert first.id is not None
        assert first.name is not None
        return ToolCall(first.id, first.name, text)
    return type(first)(text)
