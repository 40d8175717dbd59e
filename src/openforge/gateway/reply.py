"""A reply as it grows: the events a parser emits, and the message they add up to.

Invariant: the message is exactly the sum of the events, so a streamed reply and a plain one cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from openforge.gateway.turn import Message, ToolCall
from openforge.types import FinishReason


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of the reply's tool call number `index`. Its first delta carries id and name, any later one only more argument text."""

    index: int
    id: str | None
    name: str | None
    arguments: str


ReplyEvent = TextDelta | ReasoningDelta | ToolCallDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one call."""

    prompt_tokens: int
    cached_tokens: int = 0
    """Of these, tokens that the rollout's earlier calls hold already."""
    sampled_tokens: int = 0
    reasoning_tokens: int = 0
    """Of the sampled ones, tokens that became reasoning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a complete reply ended."""

    finish: FinishReason
    """STOP or LENGTH."""
    usage: Usage
    stop: str | None = None
    """The stop string that ended it, if one did."""


class Reply:
    """Adds events up to a message."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[str, str, list[str]]] = []

    def add(self, events: Iterable[ReplyEvent]) -> None:
        for event in events:
            match event:
                case TextDelta(text):
                    self._text.append(text)
                case ReasoningDelta(text):
                    self._reasoning.append(text)
                case ToolCallDelta(index, id, name, arguments):
                    if index == len(self._calls):
                        assert id is not None
                        assert name is not None
                        self._calls.append((id, name, []))
                    self._calls[index][2].append(arguments)

    def message(self) -> Message:
        return Message(
            role="assistant",
            content="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(ToolCall(id, name, "".join(arguments)) for id, name, arguments in self._calls),
        )


def events_of(message: Message) -> list[ReplyEvent]:
    """Events that add up to a message."""
    events: list[ReplyEvent] = []
    if message.reasoning:
        events.append(ReasoningDelta(message.reasoning))
    if message.content:
        events.append(TextDelta(message.content))
    return events + [ToolCallDelta(index, call.id, call.name, call.arguments) for index, call in enumerate(message.tool_calls)]
