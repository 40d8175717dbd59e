"""Server-sent events (WHATWG HTML, section 9.2): how every dialect streams."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

COMMENT = b": keep-alive\n\n"
"""An event no parser dispatches."""


def event(payload: object, name: str | None = None) -> bytes:
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + msgspec.json.encode(payload) + b"\n\n"


class Template:
    """Events in which only one string changes: the rest is encoded once."""

    def __init__(self, write: Callable[[str], bytes]) -> None:
        self._head, self._tail = write(_HOLE).split(msgspec.json.encode(_HOLE))

    def fill(self, text: str) -> bytes:
        return self._head + msgspec.json.encode(text) + self._tail


_HOLE = "\0hole\0"
