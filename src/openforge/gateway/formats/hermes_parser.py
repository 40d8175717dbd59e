"""Hermes tool calls: how one is written, and how text and calls are read as they are sampled.

Invariant: events do not depend on how the text was cut, time is linear in the text, and only a complete `<tool_call>` with a JSON object
of exactly `name` (a string) and `arguments` (an object) is a call. Anything else, a truncated call included, stays visible text: a call is
never guessed. A `</tool_call>` inside a JSON string does not end a call.
"""

from __future__ import annotations

from collections.abc import Sequence

from openforge.gateway.formats.grammar import GrammarParser, NoCall, Reading
from openforge.gateway.formats.json_text import is_name, read_object
from openforge.gateway.formats.values import read_arguments, to_json
from openforge.gateway.turn import ToolCall

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"


def text_and_calls(text: str, calls: Sequence[ToolCall]) -> str:
    """An assistant's text and calls as the model writes them."""
    return "\n".join([*([text] if text else []), *map(_write, calls)])


def _write(call: ToolCall) -> str:
    # Arguments that a client mangled are shown as the string they are: the model itself cannot write such a call.
    arguments = read_arguments(call.arguments)
    written = to_json({"name": call.name, "arguments": call.arguments if arguments is None else arguments})
    return f"{CALL_OPEN}\n{written}\n{CALL_CLOSE}"


class HermesParser(GrammarParser):
    """Reads what stands behind the reasoning."""

    def _reply(self) -> Reading[None]:
        while (yield from self._show_until(CALL_OPEN)) is not None:
            try:
                yield from self._space()
                text = yield from self._object()
                yield from self._space()
                yield from self._expect(CALL_CLOSE)
                self._call(*_read_call(text))
            except NoCall:
                self._show_raw()


def _read_call(text: str) -> tuple[str, str]:
    """(name, arguments as written) of a tool call's JSON."""
    found = read_object(text)
    if found is None or set(found) != {"name", "arguments"}:
        raise NoCall
    (name, _), (arguments, written) = found["name"], found["arguments"]
    if not is_name(name) or not isinstance(arguments, dict):
        raise NoCall
    return name, written
