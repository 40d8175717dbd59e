"""Reads the reasoning at the head of a reply, and hands what follows to a parser of text and calls.

    <think>\\n reasoning \\n</think>\\n\\n text and calls

Invariant: the parser starts where the generation prompt left off: inside the reasoning if `<think>` is prefilled. Reasoning ends at
`</think>`; where the reply ends without one, it ends at the first tool call that is whole. A call quoted in reasoning that is closed later
is reasoning.
"""

from __future__ import annotations

from collections.abc import Callable

from openforge.gateway.formats.base import ReplyParser
from openforge.gateway.formats.scan import SPACE, overlap
from openforge.gateway.reply import ReasoningDelta, ReplyEvent, ToolCallDelta
from openforge.gateway.turn import Message

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


class ThinkParser:
    def __init__(self, rest: ReplyParser, *, prefilled: bool, call_open: str) -> None:
        """`call_open`: what a tool call begins with."""
        self._rest = rest
        self._call_open = call_open
        self._buffer = ""
        self._space: list[str] = []
        """White space before a reply that may begin with reasoning."""
        self._quoted: list[str] = []
        """From a call in the reasoning on: reasoning if that is closed later."""
        self._state: Callable[[bool], bool] = self._think if prefilled else self._start
        self._events: list[ReplyEvent] = []

    def feed(self, text: str) -> list[ReplyEvent]:
        self._buffer += text
        return self._run(ended=False)

    def finish(self) -> list[ReplyEvent]:
        return self._run(ended=True)

    def _run(self, *, ended: bool) -> list[ReplyEvent]:
        while self._state(ended):
            pass
        events, self._events = self._events, []
        return events

    # Each state consumes from the buffer and says whether to go on; it returns False when it needs more text (or at the end, when done).

    def _start(self, ended: bool) -> bool:
        body = self._buffer.lstrip(SPACE)
        self._space.append(self._buffer[: len(self._buffer) - len(body)])
        self._buffer = body
        if body.startswith(THINK_OPEN):
            self._buffer = body[len(THINK_OPEN) :]
            self._state = self._think_newline
            return True
        if THINK_OPEN.startswith(body) and not ended:
            return False
        self._buffer = "".join([*self._space, body])
        self._state = self._pass_on
        return True

    def _think_newline(self, ended: bool) -> bool:
        if not self._buffer and not ended:
            return False
        self._buffer = self._buffer.removeprefix("\n")
        self._state = self._think
        return True

    def _think(self, ended: bool) -> bool:
        close, call = (self._buffer.find(mark) for mark in (THINK_CLOSE, self._call_open))
        if close >= 0 and not 0 <= call < close:
            self._reason(self._buffer[:close].removesuffix("\n"))
            self._buffer = self._buffer[close + len(THINK_CLOSE) :]
            self._state = self._after_think
            return True
        if call >= 0:
            head = self._buffer[:call]
            self._reason(head.removesuffix("\n"))
            self._quoted = ["\n" if head.endswith("\n") else ""]
            self._buffer = self._buffer[call:]
            self._state = self._quote
            return True
        marks = (THINK_CLOSE, self._call_open)
        keep = 0 if ended else overlap(self._buffer, *marks, *(f"\n{mark}" for mark in marks))
        cut = len(self._buffer) - keep
        self._reason(self._buffer[:cut])
        self._buffer = self._buffer[cut:]
        return False

    def _quote(self, ended: bool) -> bool:
        head, close, rest = self._buffer.partition(THINK_CLOSE)
        if close:
            self._reason("".join([*self._quoted, head]).removesuffix("\n"))
            self._buffer = rest
            self._state = self._after_think
            return True
        keep = 0 if ended else overlap(self._buffer, THINK_CLOSE)
        cut = len(self._buffer) - keep
        self._quoted.append(self._buffer[:cut])
        self._buffer = self._buffer[cut:]
        if ended:
            newline, *text = self._quoted
            events = [*self._rest.feed("".join(text)), *self._rest.finish()]
            if any(isinstance(event, ToolCallDelta) for event in events):
                self._events += events
            else:
                self._reason(newline + "".join(text))
            self._quoted = [""]
        return False

    def _after_think(self, ended: bool) -> bool:
        if len(self._buffer) < 2 and not self._buffer.strip("\n") and not ended:
            return False
        self._buffer = self._buffer.removeprefix("\n").removeprefix("\n")
        self._state = self._pass_on
        return True

    def _pass_on(self, ended: bool) -> bool:
        text, self._buffer = self._buffer, ""
        if text:
            self._events += self._rest.feed(text)
        if ended:
            self._events += self._rest.finish()
        return False

    def _reason(self, text: str) -> None:
        if text:
            self._events.append(ReasoningDelta(text))


def split_think(message: Message, *, keep_end: bool) -> tuple[str, str]:
    """(reasoning, content) of an assistant message, as chat templates read it: a client may have left the reasoning in the content.
    `keep_end`: newlines at the end of such a content stay."""
    if message.reasoning or THINK_CLOSE not in message.content:
        return message.reasoning, message.content
    head, *_, content = message.content.split(THINK_CLOSE)
    reasoning = head.strip("\n").split(THINK_OPEN)[-1].strip("\n")
    return reasoning, content.lstrip("\n") if keep_end else content.strip("\n")


def think(reasoning: str) -> str:
    """Reasoning as it stands at the head of a reply."""
    return f"{THINK_OPEN}\n{reasoning}\n{THINK_CLOSE}\n\n"


def sampled_think(reasoning: str, *, prefilled: bool) -> str:
    """Reasoning as the model samples it: behind a `<think>` that the prompt ends with, or with its own, and then only if there is any."""
    if prefilled:
        return think(reasoning).removeprefix(f"{THINK_OPEN}\n")
    return think(reasoning) if reasoning else ""
