"""JSON as a model writes it: where an object ends, and what it holds word for word.

Invariant: what is read is JSON exactly (no NaN, no duplicate keys), and values keep the text they were written in.
"""

from __future__ import annotations

import json
import re
from typing import TypeGuard

from openforge.gateway.formats.scan import SPACE

_STRUCTURE = re.compile(r'["{}\[\]]')
_STRING_STOP = re.compile(r'["\\]')


class ObjectScan:
    """Finds the end of a JSON object whose opening brace is read already, seeing every character once."""

    def __init__(self) -> None:
        self.complete = False
        self._depth = 1
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int:
        """How many characters of `text` belong to the object."""
        at = 0
        while at < len(text) and not self.complete:
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_STRING_STOP if self._in_string else _STRUCTURE).search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            if self._in_string:
                self._escaped = found[0] == "\\"
                self._in_string = self._escaped
            else:
                self._in_string = found[0] == '"'
                self._depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(found[0], 0)
                self.complete = self._depth == 0
        return at


def read_object(text: str) -> dict[str, tuple[object, str]] | None:
    """Key → (value, its text) of a JSON object, or None where `text` is not exactly one."""
    found: dict[str, tuple[object, str]] = {}
    at = _skip(text, 0)
    try:
        if text[at] != "{":
            return None
        at = _skip(text, at + 1)
        while text[at] != "}":
            key, at = _DECODER.raw_decode(text, at)
            at = _skip(text, at)
            if not isinstance(key, str) or key in found or text[at] != ":":
                return None
            start = _skip(text, at + 1)
            value, at = _DECODER.raw_decode(text, start)
            found[key] = (value, text[start:at])
            at = _skip(text, at)
            if text[at] == ",":
                at = _skip(text, at + 1)
                if text[at] == "}":
                    return None
            elif text[at] != "}":
                return None
    except (ValueError, IndexError, RecursionError):
        return None
    return None if text[at + 1 :].strip(SPACE) else found


def is_name(value: object) -> TypeGuard[str]:
    """Whether a value can be a tool's name. An escaped lone surrogate is legal JSON, but no JSON writer puts it out again."""
    return isinstance(value, str) and value != "" and not any("\ud800" <= char <= "\udfff" for char in value)


def is_json(text: str) -> bool:
    try:
        _DECODER.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in SPACE:
        at += 1
    return at


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
