"""Hermes tool calls: how one is written, and how text and calls are read as they are sampled.

Invariant: events do not depend on how the text was cut, time is linear in the text, and only a complete `<tool_call>` with a JSON object
of exactly `name` (a string) and `arguments` (an object) is a call. Anything else, a truncated call included, stays visible text: a call is
never guessed. A `</tool_call>` inside a JSON string does not end a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from openforge.gateway.formats.scan import SPACE, Prose, overlap
from openforge.gateway.formats.values import read_arguments, to_json
from openforge.gateway.reply import ReplyEvent, ToolCallDelta
from openforge.gateway.turn import ToolCall, new_tool_call_id

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"

_STRUCTURE = re.compile(r'["{}\[\]]')
_STRING_STOP = re.compile(r'["\\]')


def text_and_calls(text: str, calls: Sequence[ToolCall]) -> str:
    """An assistant's text and calls as the model writes them."""
    return "\n".join([*([text] if text else []), *map(_write, calls)])


def _write(call: ToolCall) -> str:
    # Arguments that a client mangled are shown as the string they are: the model itself cannot write such a call.
    arguments = read_arguments(call.arguments)
    written = to_json({"name": call.name, "arguments": call.arguments if arguments is None else arguments})
    return f"{CALL_OPEN}\n{written}\n{CALL_CLOSE}"


class HermesParser:
    """Reads what stands behind the reasoning."""

    def __init__(self) -> None:
        self._buffer = ""
        self._state: Callable[[bool], bool] = self._text
        self._calls = 0
        self._prose = Prose()
        self._events: list[ReplyEvent] = []
        self._scan = _CallScan()
        self._tail: list[str] = []

    def feed(self, text: str) -> list[ReplyEvent]:
        self._buffer += text
        return self._run(ended=False)

    def finish(self) -> list[ReplyEvent]:
        return [*self._run(ended=True), *self._prose.finish()]

    def _run(self, *, ended: bool) -> list[ReplyEvent]:
        while self._state(ended):
            pass
        events, self._events = self._events, []
        return events

    # Each state consumes from the buffer and says whether to go on; it returns False when it needs more text (or at the end, when done).

    def _text(self, ended: bool) -> bool:
        head, opened, rest = self._buffer.partition(CALL_OPEN)
        if opened:
            self._events += self._prose.text(head)
            self._buffer = rest
            self._scan = _CallScan()
            self._tail = []
            self._state = self._call
            return True
        keep = 0 if ended else overlap(self._buffer, CALL_OPEN)
        cut = len(self._buffer) - keep
        self._events += self._prose.text(self._buffer[:cut])
        self._buffer = self._buffer[cut:]
        return False

    def _call(self, ended: bool) -> bool:
        verdict, used = self._scan.feed(self._buffer)
        self._tail.append(self._buffer[:used])
        self._buffer = self._buffer[used:]
        if verdict is None and not ended:
            return False
        body = "".join(self._tail)
        call = _read_call(body.removesuffix(CALL_CLOSE)) if verdict else None
        self._state = self._text
        if call is None:
            self._events += self._prose.text(CALL_OPEN + body)
        else:
            self._prose.call()
            self._events.append(ToolCallDelta(self._calls, new_tool_call_id(), *call))
            self._calls += 1
        return True


class _CallScan:
    """Finds the end of `{json}</tool_call>`, reading every character once."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._opened = False
        self._close = 0

    def feed(self, text: str) -> tuple[bool | None, int]:
        """(True: the call is complete; False: this is no call; None: not decided, characters used)."""
        at = 0
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
            elif self._in_string:
                found = _STRING_STOP.search(text, at)
                if found is None:
                    return None, len(text)
                self._escaped = found[0] == "\\"
                self._in_string = self._escaped
                at = found.end()
            elif self._depth:
                found = _STRUCTURE.search(text, at)
                if found is None:
                    return None, len(text)
                self._in_string = found[0] == '"'
                self._depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(found[0], 0)
                at = found.end()
            else:
                step = self._outside(text[at])
                if step is False:
                    return False, at
                at += 1
                if step:
                    return True, at
        return None, at

    def _outside(self, char: str) -> bool | None:
        """Before and after the JSON object only white space may stand, then the closing tag."""
        if self._close or (self._opened and char == "<"):
            if char != CALL_CLOSE[self._close]:
                return False
            self._close += 1
            return True if self._close == len(CALL_CLOSE) else None
        if char in SPACE:
            return None
        if char == "{" and not self._opened:
            self._opened = True
            self._depth = 1
            return None
        return False


def _read_call(text: str) -> tuple[str, str] | None:
    """(name, arguments as written) of a tool call's JSON, or None where it is not exactly one."""
    found: dict[str, tuple[object, str]] = {}
    at = _skip(text, 0) + 1
    try:
        while True:
            key, at = _DECODER.raw_decode(text, _skip(text, at))
            at = _skip(text, at)
            if not isinstance(key, str) or key in found or text[at] != ":":
                return None
            start = _skip(text, at + 1)
            value, at = _DECODER.raw_decode(text, start)
            found[key] = (value, text[start:at])
            at = _skip(text, at)
            if text[at] == "}":
                break
            if text[at] != ",":
                return None
            at += 1
    except (ValueError, IndexError, RecursionError):
        return None
    if set(found) != {"name", "arguments"} or text[at + 1 :].strip(SPACE):
        return None
    (name, _), (arguments, written) = found["name"], found["arguments"]
    # An escaped lone surrogate is legal JSON, but no JSON writer puts it out again.
    good = isinstance(name, str) and name and not any("\ud800" <= char <= "\udfff" for char in name)
    return (name, written) if isinstance(name, str) and good and isinstance(arguments, dict) else None


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in SPACE:
        at += 1
    return at


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
