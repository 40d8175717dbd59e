"""What a model-side format is: how messages become the model's text, and its text becomes a reply.

Invariant: for a conversation `m1 … mn`, `prompt(before) + reply(r) + continuation(after, closed=True)` is the model's own rendering of the
whole, and the text is cut only where a special token begins or has just ended. So the pieces may be tokenised one by one, and ids that are
stored already are never rendered again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from openforge.gateway.reply import ReplyEvent
from openforge.gateway.turn import Message, Tool


class ReplyParser(Protocol):
    """Turns a reply's text into events as it comes. The events do not depend on how the text was cut into pieces (up to how adjacent text
    deltas are joined), and no text is lost: what is not a well-formed tool call is text."""

    def feed(self, text: str) -> list[ReplyEvent]: ...

    def finish(self) -> list[ReplyEvent]:
        """The text has ended: let go of everything held back."""
        ...


class Format(Protocol):
    name: str
    stop_token_ids: tuple[int, ...]
    """Ids that end a reply. The first is the end-of-turn token that `reply` renders; a reply that ended with any other, or with none, is
    continued with `closed=False`."""

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """The whole conversation, up to and including the prompt for the next reply. It ends with `continuation((), …, closed=True)`."""
        ...

    def reply(self, message: Message) -> str:
        """An assistant message as the model samples it, with the end-of-turn token."""
        ...

    def continuation(self, messages: Sequence[Message], tools: Sequence[Tool], *, closed: bool) -> str:
        """What follows a message up to and including the prompt for the next reply. `closed`: the end-of-turn token stands already."""
        ...

    def parser(self, tools: Sequence[Tool]) -> ReplyParser:
        """For one reply. `tools`: those of the turn; their schemas say what an untyped argument is."""
        ...
