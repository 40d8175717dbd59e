"""MiniMax M2, M2.1 and later M2 models.

    ]~!b[]~b]system\\n … <tools> <tool>{schema}</tool> … </tools> …[e~[
    ]~b]user\\n…[e~[
    ]~b]ai\\n<think>\\n…\\n</think>\\n\\n… <minimax:tool_call> <invoke name="…"> <parameter name="…">…</parameter> … [e~[
    ]~b]tool\\n<response>…</response>[e~[                                         (one turn for a run of results)

Reasoning rule: kept in the messages behind the last user message, dropped before it; a reply's own `<think>` is prefilled, so what the
model samples begins inside it. Invariant: the rendering is the model's own chat template's, with system text in the middle folded first
(the template would drop it).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from openforge.gateway.formats.fold import fold_systems
from openforge.gateway.formats.tagged_parser import TaggedParser
from openforge.gateway.formats.tags import Tags
from openforge.gateway.formats.template import SystemTurn, Template
from openforge.gateway.formats.think_parser import THINK_OPEN, ThinkParser, split_think, think
from openforge.gateway.formats.values import read_arguments, to_json
from openforge.gateway.formats.vocabulary import token_ids
from openforge.gateway.turn import Message, Tool, ToolCall

BEGIN, ROLE, END = "]~!b[", "]~b]", "[e~["
TAGS = Tags(
    open_block="<minimax:tool_call>",
    close_block="</minimax:tool_call>",
    open_call='<invoke name="{name}">',
    close_call="</invoke>",
    open_parameter='<parameter name="{name}">',
    close_parameter="</parameter>",
)
OPENING = f"{ROLE}ai\n{THINK_OPEN}\n"


class MiniMaxM2:
    name = "minimax_m2"

    def __init__(self, tokenizer: Any) -> None:
        end, *_ = token_ids(tokenizer, self.name, (END, ROLE, BEGIN))
        self.stop_token_ids: tuple[int, ...] = (end,)
        self.closing_token_ids = frozenset(self.stop_token_ids)
        self._system = SystemTurn(Template(tokenizer, self.name), lambda tool: to_json(tool.record()), f"{ROLE}user\n")

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        folded = fold_systems(messages, head=True)
        has_system = bool(folded) and folded[0].role == "system"
        system = folded[0].content if has_system else None
        return self._system.render(system, tools) + _turns(folded[has_system:]) + OPENING

    def opening(self, tools: Sequence[Tool], *, after: Message) -> str:
        return f"\n{OPENING}"

    def reply(self, message: Message) -> str:
        thought = think(message.reasoning).removeprefix(f"{THINK_OPEN}\n")
        return f"{thought}{message.content}{write_calls(message.tool_calls)}{END}"

    def continuation(self, messages: Sequence[Message], tools: Sequence[Tool], *, after: Message, closed: bool) -> str:
        return f"{'' if closed else END}\n{_turns(fold_systems(messages, head=False))}{OPENING}"

    def parser(self, tools: Sequence[Tool]) -> ThinkParser:
        return ThinkParser(TaggedParser(TAGS, tools), prefilled=True, call_open=TAGS.open_block)


def _turns(messages: Sequence[Message]) -> str:
    last_user = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
    parts: list[str] = []
    for is_tool, run in groupby(enumerate(messages), lambda item: item[1].role == "tool"):
        if is_tool:
            results = "".join(f"\n<response>{message.content}</response>" for _, message in run)
            parts.append(f"{ROLE}tool{results}{END}\n")
        else:
            parts.extend(_turn(message, keep=index > last_user) for index, message in run)
    return "".join(parts)


def _turn(message: Message, *, keep: bool) -> str:
    if message.role != "assistant":
        return f"{ROLE}{message.role}\n{message.content}{END}\n"
    reasoning, content = split_think(message, keep_end=False)
    kept = think(reasoning) if reasoning and keep else ""
    return f"{ROLE}ai\n{kept}{content}{write_calls(message.tool_calls)}{END}\n"


def write_calls(calls: Sequence[ToolCall]) -> str:
    """A reply's calls, one block."""
    if not calls:
        return ""
    return f"\n{TAGS.open_block}\n{''.join(map(_call, calls))}{TAGS.close_block}"


def _call(call: ToolCall) -> str:
    arguments = read_arguments(call.arguments)
    # Arguments that a client mangled are shown as the string they are: the model itself cannot write such a call.
    body = f"{call.arguments}\n" if arguments is None else "".join(_parameter(key, value) for key, value in arguments.items())
    return f'<invoke name="{call.name}">\n{body}</invoke>\n'


def _parameter(key: str, value: object) -> str:
    return f'<parameter name="{key}">{value if isinstance(value, str) else to_json(value)}</parameter>\n'
