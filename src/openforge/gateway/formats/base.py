"""What a model-side format is: how messages become the model's text, and its text becomes a reply.

Invariant (the prefix law): for a conversation `m1 … mn`, `prompt(before) + reply(r) + continuation(rest, after=r, closed=True)` is the
model's own rendering of the whole, but for reasoning that the template would drop once a user has spoken again and the pieces keep. The
text is cut only where a special token begins or has just ended, or, where the opening of a reply ends in the middle of its reasoning, where
the model itself goes on. So the pieces may be tokenised one by one, and ids that are stored already are never rendered again.
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
    """Ids that end a reply. The first is the end-of-turn token that `reply` renders."""
    closing_token_ids: frozenset[int]
    """Those of them that end the turn as well; a reply that ended with any other, or with none, is continued with `closed=False`."""

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """The whole conversation, up to and including the opening of the next reply: the text that the template would write."""
        ...

    def opening(self, tools: Sequence[Tool], *, after: Message) -> str:
        """How the reply to `after` begins before the model speaks: the end of any prompt whose last message is `after`."""
        ...

    def reply(self, message: Message) -> str:
        """An assistant message as the model samples it, with the end-of-turn token."""
        ...

    def continuation(self, messages: Sequence[Message], tools: Sequence[Tool], *, after: Message, closed: bool) -> str:
        """`messages` behind `after`, up to and including the opening of the next reply. `closed`: `after` ends with its end-of-turn token.
        Behind a prompt less its opening, other messages than a reply go on the same way, with `closed=True`."""
        ...

    def parser(self, tools: Sequence[Tool]) -> ReplyParser:
        """For one reply. `tools`: those of the turn; their schemas say what an untyped argument is."""
        ...
