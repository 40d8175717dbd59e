"""Reads the text and the tool calls of a DeepSeek V3.1 reply as it is sampled.

Invariant: only a complete `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>` with a JSON object is a call; its end is found by
the object's braces, so the tokens may stand in its strings. The pair around the calls is asked for by the convention and not needed here:
models leave out either half at times.
"""

from __future__ import annotations

import re

from openforge.gateway.formats.grammar import GrammarParser, NoCall, Reading
from openforge.gateway.formats.json_text import read_object

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"

_NAME = re.compile(r"[^<>\n]*")


class DeepSeekV31Parser(GrammarParser):
    def _reply(self) -> Reading[None]:
        while (mark := (yield from self._show_until(CALLS_BEGIN, CALL_BEGIN))) is not None:
            try:
                yield from self._block(mark)
            except NoCall:
                self._show_raw()

    def _block(self, mark: str) -> Reading[None]:
        if mark == CALLS_BEGIN:
            yield from self._space()
            yield from self._expect(CALL_BEGIN)
        while mark != CALLS_END:
            name = (yield from self._while(_NAME)).strip()
            yield from self._expect(SEPARATOR)
            yield from self._space()
            arguments = yield from self._object()
            yield from self._space()
            yield from self._expect(CALL_END)
            if not name or read_object(arguments) is None:
                raise NoCall
            self._call(name, arguments)
            yield from self._space()
            mark = yield from self._expect(CALL_BEGIN, CALLS_END)
        self._raw.clear()
