"""JSON as a model writes it: where an object ends, and what it holds word for word.

Invariant: what is read is JSON exactly (no NaN, no duplicate keys) that every client can read too (no lone surrogate, no number beyond a
double's range, no great depth), and values keep the text they were written in.
"""

from __future__ import annotations

import json
import math
import re
from typing import TypeGuard

from openforge.gateway.formats.scan import SPACE
from openforge.gateway.json_text import depth

MAX_DEPTH = 64
"""Where .NET's reader gives up, the strictest of clients' SDKs; and it fits into the depth that a request may have when it comes back."""

_STRUCTURE = re.compile(r'["{}\[\]]')
_STRING_STOP = re.compile(r'["\\]')
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")


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
    whole = not text[at + 1 :].strip(SPACE) and _readable({key: value for key, (value, _) in found.items()}, text)
    return found if whole else None


def is_name(value: object) -> TypeGuard[str]:
    """Whether a value can be a tool's name."""
    return isinstance(value, str) and value != ""


def read_json(text: str) -> object:
    """Raises ValueError."""
    try:
        value: object = _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    if not _readable(value, text):
        raise ValueError("not every client can read it")
    return value


def is_json(text: str) -> bool:
    try:
        read_json(text)
    except ValueError:
        return False
    return True


def _readable(value: object, text: str) -> bool:
    """Whether the value of a JSON text can be read and written by all clients. Escaped lone surrogates are legal JSON, but most refuse."""
    if depth(value) > MAX_DEPTH:
        return False
    plain = json.dumps(value, ensure_ascii=False) if _ESCAPED.search(text) else text
    return _SURROGATE.search(plain) is None


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in SPACE:
        at += 1
    return at


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is beyond a double's range")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
