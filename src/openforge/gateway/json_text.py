"""JSON as clients and models really write it.

Invariant: what is decoded here can be encoded again. Lone surrogates (JavaScript clients that cut strings send them; no tokenizer can
encode them) become U+FFFD. NaN and numbers beyond a double's range, which JSON has no words for, are written as null.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec


def decode(text: bytes) -> Any:
    """Raises ValueError or RecursionError."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        repaired = json.dumps(json.loads(text), ensure_ascii=False)
        return json.loads(repaired.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def depth(value: Any) -> int:
    """How deep arrays and objects nest; 0 for a scalar."""
    found = 0
    level = [value] if isinstance(value, dict | list) else []
    while level:
        found += 1
        level = [
            child for row in level for child in (row.values() if type(row) is dict else row) if type(child) is dict or type(child) is list
        ]
    return found


def compact_object(text: str) -> msgspec.Raw | None:
    """A JSON object's text, strict and on one line, ready to be part of an answer; None for any other text."""
    try:
        value = decode(text.encode())
        return msgspec.Raw(msgspec.json.encode(value)) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None
