"""What every parser of sampled text needs: how much to hold back, and which white space is text.

Invariant: nothing shown is ever taken back, and nothing is held back longer than it is undecided.
"""

from __future__ import annotations

from openforge.gateway.reply import ReplyEvent, TextDelta

SPACE = " \t\r\n"


def overlap(text: str, *marks: str) -> int:
    """Length of the longest end of `text` that could begin one of `marks`."""
    longest = 0
    for mark in marks:
        at = text.find(mark[0], max(0, len(text) - len(mark) + 1))
        while at >= 0 and not mark.startswith(text[at:]):
            at = text.find(mark[0], at + 1)
        if at >= 0:
            longest = max(longest, len(text) - at)
    return longest


class Prose:
    """The visible text of a reply, less the white space that only sets calls apart: before the first call one newline (`trim`: all of it),
    around later ones all of it. So white space is text only if text follows it, or the reply ends without a call."""

    def __init__(self, *, trim: bool = False) -> None:
        self._trim = trim
        self._called = False
        self._held = ""

    def text(self, text: str) -> list[ReplyEvent]:
        text = self._held + text
        body = text.rstrip(SPACE) if self._called or self._trim else text.removesuffix("\n")
        self._held = text[len(body) :]
        return [TextDelta(body)] if body else []

    def call(self) -> None:
        """A call stands here."""
        self._called = True
        self._held = ""

    def finish(self) -> list[ReplyEvent]:
        held, self._held = self._held, ""
        return [TextDelta(held)] if held and not self._called else []
