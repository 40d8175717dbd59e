"""The tags of a format that writes calls as tags, and how they are found in a stream.

Invariant: the pieces read add up to the text, a tag is never split, and no more is held back than could still become one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast

from openforge.gateway.formats.scan import SPACE

Kind = Literal["open_block", "close_block", "open_call", "close_call", "open_parameter", "close_parameter"]
KINDS: tuple[Kind, ...] = ("open_block", "close_block", "open_call", "close_call", "open_parameter", "close_parameter")
NAME = r'[^"<>\n]{1,256}'
LONGEST = 512
"""Characters of a tag at most, its name counted."""


@dataclass(frozen=True, kw_only=True)
class Tags:
    """A format's tags. `{name}` stands for the name in `open_call` and `open_parameter`; `{string}`, in `open_parameter`, for "true" or
    "false": whether the value is a string or JSON."""

    open_block: str
    close_block: str
    open_call: str
    close_call: str
    open_parameter: str
    close_parameter: str
    padding: str = ""
    """What stands between a value and its tags."""
    python: bool = False
    """Whether values other than strings may be written as Python writes them."""
    trim: bool = False
    """Whether all white space between text and the first call only sets it apart, or one newline."""


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag, or what stands between tags: `space`, or `text` that is not only space."""

    kind: Kind | Literal["space", "text"]
    text: str
    name: str = ""
    string: str = ""


class TagReader:
    def __init__(self, tags: Tags) -> None:
        self._pattern = re.compile("|".join(f"(?P<{kind}>{_pattern(kind, getattr(tags, kind))})" for kind in KINDS))
        self._heads = [getattr(tags, kind).partition("{")[0] for kind in KINDS]
        self._buffer = ""

    def feed(self, text: str) -> Iterator[Tag]:
        self._buffer += text
        return self._read(ended=False)

    def finish(self) -> Iterator[Tag]:
        return self._read(ended=True)

    def _read(self, *, ended: bool) -> Iterator[Tag]:
        at = 0
        for match in self._pattern.finditer(self._buffer):
            yield from _between(self._buffer[at : match.start()])
            found = match.groupdict()
            yield Tag(cast("Kind", match.lastgroup), match[0], found.get(f"{match.lastgroup}_name") or "", found.get("string") or "")
            at = match.end()
        cut = len(self._buffer) if ended else max(at, self._undecided())
        yield from _between(self._buffer[at:cut])
        self._buffer = self._buffer[cut:]

    def _undecided(self) -> int:
        """Where a tag may have begun that is not complete."""
        at = self._buffer.rfind("<", max(0, len(self._buffer) - LONGEST))
        tail = self._buffer[at:] if at >= 0 else ""
        may = tail and ">" not in tail and any(head.startswith(tail) or tail.startswith(head) for head in self._heads)
        return at if may else len(self._buffer)


def _pattern(kind: Kind, tag: str) -> str:
    name, string = f"(?P<{kind}_name>{NAME})", "(?P<string>true|false)"
    return re.escape(tag).replace(r"\{name\}", name).replace(r"\{string\}", string)


def _between(text: str) -> Iterator[Tag]:
    if text:
        yield Tag("text" if text.strip(SPACE) else "space", text)
