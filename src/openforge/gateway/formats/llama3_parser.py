"""Reads a Llama 3 reply as it is sampled: text, and tool calls as bare JSON or behind `<|python_tag|>`.

Invariant: only a complete JSON object of exactly `name` and `parameters` (or `arguments`, as the model writes at times; `type` may say
`function`) is a call. Nothing marks a bare object as a call, so one counts only as the first thing in a reply, and only if it names a tool
of the turn: an answer in JSON stays an answer. Behind `<|python_tag|>` any name counts; what else stands there, code or a built-in's
`name.call(…)`, stays text.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

from openforge.gateway.formats.grammar import GrammarParser, NoCall, Reading
from openforge.gateway.formats.json_text import is_name, read_object
from openforge.gateway.turn import Tool

PYTHON_TAG = "<|python_tag|>"

_SEPARATOR = re.compile(r"[;\s]*")


class Llama3Parser(GrammarParser):
    def __init__(self, tools: Sequence[Tool]) -> None:
        self._names = frozenset(tool.name for tool in tools)
        super().__init__()

    def _reply(self) -> Reading[None]:
        yield from self._space()
        if self._names:
            yield from self._block(self._names)
        self._read_again()
        while (yield from self._show_until(PYTHON_TAG)) is not None:
            yield from self._block(None)
            self._show_raw()

    def _block(self, names: Container[str] | None) -> Reading[None]:
        """Calls, one behind the other, up to what is none; `names`: those that count, None for any."""
        try:
            while True:
                self._call(*_read_call((yield from self._object()), names))
                yield from self._while(_SEPARATOR)
        except NoCall:
            pass


def _read_call(text: str, names: Container[str] | None) -> tuple[str, str]:
    """(name, arguments as written)."""
    found = read_object(text)
    if found is None or found.pop("type", ("function", ""))[0] != "function":
        raise NoCall
    name, _ = found.pop("name", (None, ""))
    if len(found) != 1 or not found.keys() <= {"parameters", "arguments"}:
        raise NoCall
    ((value, written),) = found.values()
    if not is_name(name) or (names is not None and name not in names) or not isinstance(value, dict):
        raise NoCall
    return name, written
