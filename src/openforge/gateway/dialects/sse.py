"""Server-sent events (WHATWG HTML, section 9.2): how every dialect streams."""

from __future__ import annotations

import msgspec

COMMENT = b": keep-alive\n\n"
"""An event no parser dispatches."""


def event(payload: object, name: str | None = None) -> bytes:
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + msgspec.json.encode(payload) + b"\n\n"
