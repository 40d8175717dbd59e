"""What the parsers of several formats are made of: a reply read by a grammar, in pieces of any size.

A grammar is a generator. It takes text from the front of the buffer and yields where it needs more; at the end of the text it is told so.
While it reads what may be a tool call, it keeps the raw text, and `NoCall` shows that text after all.

Invariant: every character is shown, or belongs to a call, or is white space beside one (`scan.Prose`). The buffer holds no more than an
undecided mark, and so time is linear.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TypeVar

from openforge.gateway.formats.json_text import ObjectScan
from openforge.gateway.formats.scan import SPACE, Prose, overlap
from openforge.gateway.reply import ReplyEvent, ToolCallDelta
from openforge.gateway.turn import new_tool_call_id

T = TypeVar("T")
Reading = Generator[None, None, T]

_SPACE = re.compile(f"[{SPACE}]*")


class NoCall(Exception):
    """What looked like the beginning of a tool call is none."""


class GrammarParser:
    def __init__(self) -> None:
        self._buffer = ""
        self._raw: list[str] = []
        """What was taken since the last call or text that was shown."""
        self._ended = False
        self._prose = Prose()
        self._calls = 0
        self._events: list[ReplyEvent] = []
        self._grammar = self._reply()

    def feed(self, text: str) -> list[ReplyEvent]:
        self._buffer += text
        return self._advance()

    def finish(self) -> list[ReplyEvent]:
        self._ended = True
        return self._advance()

    def _advance(self) -> list[ReplyEvent]:
        next(self._grammar, None)
        if self._ended:
            self._events += self._prose.finish()
        events, self._events = self._events, []
        return events

    def _reply(self) -> Reading[None]:
        """The grammar of a whole reply."""
        raise NotImplementedError

    # --- what becomes of the text -------------------------------------------------------------------------------------------------------

    def _show(self, text: str) -> None:
        if text:
            self._events += self._prose.text(text)

    def _show_raw(self) -> None:
        self._show("".join(self._raw))
        self._raw.clear()

    def _read_again(self) -> None:
        """Put back what was taken. Time stays linear if a grammar does it a fixed number of times."""
        self._buffer = "".join(self._raw) + self._buffer
        self._raw.clear()

    def _call(self, name: str, arguments: str) -> None:
        """A call is complete."""
        self._raw.clear()
        self._prose.call()
        self._events.append(ToolCallDelta(self._calls, new_tool_call_id(), name, arguments))
        self._calls += 1

    # --- reading ------------------------------------------------------------------------------------------------------------------------

    def _take(self, count: int) -> str:
        text, self._buffer = self._buffer[:count], self._buffer[count:]
        self._raw.append(text)
        return text

    def _show_until(self, *marks: str) -> Reading[str | None]:
        """Show text up to the first of `marks`, which is taken; None when the text ends before."""
        while True:
            found = [(at, mark) for mark in marks if (at := self._buffer.find(mark)) >= 0]
            at, mark = min(found) if found else (len(self._buffer) - (0 if self._ended else overlap(self._buffer, *marks)), None)
            self._show(self._buffer[:at])
            self._buffer = self._buffer[at:]
            if mark is not None:
                return self._take(len(mark))
            if self._ended:
                return None
            yield

    def _until(self, mark: str) -> Reading[str]:
        """The text before `mark`, which is taken as well."""
        pieces = []
        while (at := self._buffer.find(mark)) < 0:
            if self._ended:
                raise NoCall
            pieces.append(self._take(len(self._buffer) - overlap(self._buffer, mark)))
            yield
        pieces.append(self._take(at))
        self._take(len(mark))
        return "".join(pieces)

    def _while(self, pattern: re.Pattern[str]) -> Reading[str]:
        """The text that matches `pattern`, which matches any number of characters one by one."""
        pieces = []
        while True:
            found = pattern.match(self._buffer)
            assert found is not None
            pieces.append(self._take(found.end()))
            if self._buffer or self._ended:
                return "".join(pieces)
            yield

    def _space(self) -> Reading[str]:
        return (yield from self._while(_SPACE))

    def _one_of(self, *marks: str) -> Reading[str | None]:
        """The one of `marks` that stands here, taken; None if none does."""
        while True:
            for mark in marks:
                if self._buffer.startswith(mark):
                    return self._take(len(mark))
            if self._ended or not any(mark.startswith(self._buffer) for mark in marks):
                return None
            yield

    def _expect(self, *marks: str) -> Reading[str]:
        found = yield from self._one_of(*marks)
        if found is None:
            raise NoCall
        return found

    def _object(self) -> Reading[str]:
        """The text of a JSON object, by its braces: whether it is JSON at all is another question."""
        yield from self._expect("{")
        scan, pieces = ObjectScan(), ["{"]
        while not scan.complete:
            if not self._buffer:
                if self._ended:
                    raise NoCall
                yield
            pieces.append(self._take(scan.feed(self._buffer)))
        return "".join(pieces)
