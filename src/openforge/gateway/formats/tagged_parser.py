"""Reads tool calls whose arguments stand as bare text between tags: MiniMax M2, Qwen3-Coder, DeepSeek V3.2.

    <block> <call name> <parameter key> value </parameter> … </call> … </block>          (white space between tags does not count)

Values are not escaped, so a value may hold the very tags. The rule, exact and the same however the stream is cut:

* A closing tag closes only if what follows it may follow: the end of a parameter before a parameter that the call has not got yet or
  before the end of its call, that before another call or the end of the block, and that before another block or the end of the reply.
  Anything else is part of the value. So a value ends at the last boundary that is legal.
* A call quoted inside a value (the opening of a block and of a call in it) runs to the first end of a block, and ends nothing outside it.
* If text follows the last block, the last place where a block might have ended is where it did.

So a value is misread only if it holds, outside a whole quoted call, the end of a parameter with a fresh parameter behind it, the end of a
call with another call behind it, or half a quoted call. There the text has two readings, and no parser can tell.

Invariant: time is linear; a call is emitted when it is complete and what follows it is decided; a call that is malformed or cut short
stays visible text, to the character.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from openforge.gateway.formats.json_text import is_json
from openforge.gateway.formats.scan import Prose
from openforge.gateway.formats.tags import Tag, TagReader, Tags
from openforge.gateway.formats.values import ANY, ArgumentTypes, to_json, typed
from openforge.gateway.reply import ReplyEvent, ToolCallDelta
from openforge.gateway.turn import Tool, new_tool_call_id


@dataclass(frozen=True, slots=True)
class _Draft:
    """A call as far as it is read."""

    name: str
    closed: tuple[tuple[Tag, str], ...] = ()
    """Opening tag and text of the parameters that are closed."""
    open: Tag | None = None
    """The parameter whose value is being read."""

    def closes(self, value: str) -> _Draft:
        return self if self.open is None else replace(self, closed=(*self.closed, (self.open, value)), open=None)

    def has(self, key: str) -> bool:
        return any(tag.name == key for tag, _ in self.closed) or (self.open is not None and self.open.name == key)


@dataclass(frozen=True, slots=True)
class _End:
    """A place where the last block may have ended."""

    values: int
    """How many pieces of the open value lie before it."""
    raw: int
    """How many pieces of the raw text."""


class TaggedParser:
    def __init__(self, tags: Tags, tools: Sequence[Tool]) -> None:
        self._tags = tags
        self._reader = TagReader(tags)
        self._types = ArgumentTypes(tools)
        self._prose = Prose(trim=tags.trim)
        self._events: list[ReplyEvent] = []
        self._calls = 0
        self._state: Callable[[Tag], None] = self._text
        self._raw: list[str] = []
        """Everything since the block was opened or the last call in it was emitted: visible text if nothing comes of it."""
        self._draft = _Draft("")
        self._value: list[str] = []
        self._pending: list[str] = []
        """Tags and space behind the value that end it, or else belong to it."""
        self._quoted = 0
        """Quoted calls that are open in the value."""
        self._closing: _End | None = None
        """The end of a block that was just read."""
        self._end: _End | None = None
        """The last one behind which something stood that may not follow."""

    def feed(self, text: str) -> list[ReplyEvent]:
        for tag in self._reader.feed(text):
            self._take(tag)
        return self._taken()

    def finish(self) -> list[ReplyEvent]:
        for tag in self._reader.finish():
            self._take(tag)
        end = self._closing or self._end
        if end is not None:
            self._emit_at(end)
        self._show(self._raw)
        self._reset(self._text)
        self._events += self._prose.finish()
        return self._taken()

    def _taken(self) -> list[ReplyEvent]:
        events, self._events = self._events, []
        return events

    def _take(self, tag: Tag) -> None:
        if self._state != self._text:
            self._raw.append(tag.text)
        self._state(tag)

    # Each state takes one tag, or one piece of what stands between tags.

    def _text(self, tag: Tag) -> None:
        if tag.kind == "open_block":
            self._raw.append(tag.text)
            self._state = self._block_opened
        else:
            self._show([tag.text])

    def _block_opened(self, tag: Tag) -> None:
        if tag.kind == "open_call":
            self._begin(tag)
        elif tag.kind != "space":
            self._give_up(tag)

    def _call_opened(self, tag: Tag) -> None:
        if tag.kind == "open_parameter":
            self._begin_value(tag)
        elif tag.kind == "close_call":
            self._state = self._call_closed
        elif tag.kind != "space":
            self._give_up(tag)

    def _in_value(self, tag: Tag) -> None:
        if tag.kind in ("close_parameter", "open_block"):
            self._pending.append(tag.text)
            self._state = self._value_closed if tag.kind == "close_parameter" else self._quote_opened
            return
        if tag.kind == "close_block" and self._quoted:
            self._quoted -= 1
        self._value.append(tag.text)

    def _quote_opened(self, tag: Tag) -> None:
        if tag.kind == "space":
            self._pending.append(tag.text)
        elif tag.kind == "open_call" and self._end is not None:
            opened = [*self._pending, tag.text]
            self._emit_at(self._end)
            self._show(self._raw[: -len(opened)])
            self._raw = opened
            self._begin(tag)
        else:
            self._quoted += tag.kind == "open_call"
            self._go_on(tag)

    def _value_closed(self, tag: Tag) -> None:
        if tag.kind == "open_parameter" and not self._quoted and not self._draft.has(tag.name):
            self._draft = self._draft.closes(self._read_value(len(self._value)))
            self._begin_value(tag)
        elif tag.kind == "close_call":
            self._pending.append(tag.text)
            self._state = self._call_closed
        else:
            self._decide(tag)

    def _call_closed(self, tag: Tag) -> None:
        if tag.kind == "open_call" and not self._quoted:
            self._emit_at(_End(len(self._value), len(self._raw) - 1))
            self._begin(tag)
        elif tag.kind == "close_block":
            self._pending.append(tag.text)
            self._closing = _End(len(self._value), len(self._raw))
            self._state = self._block_closed
        else:
            self._decide(tag)

    def _block_closed(self, tag: Tag) -> None:
        if tag.kind == "open_block" and not self._quoted:
            self._pending.append(tag.text)
            self._state = self._next_block_opened
        else:
            self._decide(tag)

    def _next_block_opened(self, tag: Tag) -> None:
        if tag.kind == "open_call":
            assert self._closing is not None
            self._emit_at(self._closing)
            self._begin(tag)
        else:
            self._decide(tag)

    def _decide(self, tag: Tag) -> None:
        """Behind closing tags: space decides nothing, and any other thing that may not follow them says that they belong to the value."""
        if tag.kind == "space":
            self._pending.append(tag.text)
            return
        closing, self._closing = self._closing, None
        if self._draft.open is None:
            # Without a value there is nothing that the tags could belong to.
            if closing is not None:
                self._emit_at(closing)
            self._give_up(tag)
            return
        if closing is not None and self._quoted:
            self._quoted -= 1
        elif closing is not None:
            self._end = closing
        self._go_on(tag)

    def _go_on(self, tag: Tag) -> None:
        """What was pending belongs to the value after all."""
        self._value += self._pending
        self._pending = []
        self._state = self._in_value
        self._in_value(tag)

    def _give_up(self, tag: Tag) -> None:
        """This is no call; `tag` may begin another one."""
        self._show(self._raw[:-1])
        self._reset(self._text)
        self._text(tag)

    def _begin(self, call: Tag) -> None:
        raw = self._raw
        self._reset(self._call_opened)
        self._raw = raw
        self._draft = _Draft(call.name)

    def _begin_value(self, parameter: Tag) -> None:
        self._draft = replace(self._draft, open=parameter)
        self._value = []
        self._pending = []
        self._state = self._in_value

    def _reset(self, state: Callable[[Tag], None]) -> None:
        self._state = state
        self._raw, self._value, self._pending = [], [], []
        self._quoted = 0
        self._closing = self._end = None

    def _read_value(self, pieces: int) -> str:
        return "".join(self._value[:pieces]).removeprefix(self._tags.padding).removesuffix(self._tags.padding)

    def _emit_at(self, end: _End) -> None:
        """The call that ends there is complete; what lies behind is not part of it."""
        draft = self._draft.closes(self._read_value(end.values))
        pairs = (f"{to_json(tag.name)}: {self._typed(draft.name, tag, text)}" for tag, text in draft.closed)
        self._prose.call()
        self._events.append(ToolCallDelta(self._calls, new_tool_call_id(), draft.name, f"{{{', '.join(pairs)}}}"))
        self._calls += 1
        self._raw = self._raw[end.raw :]

    def _typed(self, call: str, parameter: Tag, text: str) -> str:
        if parameter.string == "false" and is_json(text):
            return text
        declared = {"true": frozenset({"string"}), "false": ANY - {"string"}}.get(parameter.string)
        return typed(text, declared or self._types.of(call, parameter.name), python=self._tags.python)

    def _show(self, pieces: Sequence[str]) -> None:
        if text := "".join(pieces):
            self._events += self._prose.text(text)
