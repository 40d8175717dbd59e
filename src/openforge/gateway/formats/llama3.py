"""Llama 3.1, 3.2 and 3.3: header tokens, tools in the first user message, calls as JSON.

    <|begin_of_text|><|start_header_id|>system<|end_header_id|>\\n\\n … <|eot_id|>
    <|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": …, "parameters": {…}}<|eot_id|>
    <|start_header_id|>ipython<|end_header_id|>\\n\\n"the result as a JSON string"<|eot_id|>

Invariant: the rendering is the model's own chat template's, where that renders and keeps what the model wrote. Three things differ. The
date is fixed, never today's: a prompt must not change at midnight. Text before a call is kept (the template drops it), and the call then
follows `<|python_tag|>`. Several calls (the template refuses them) are separated by `; `.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from openforge.gateway.formats.json_text import is_json
from openforge.gateway.formats.llama3_parser import PYTHON_TAG, Llama3Parser
from openforge.gateway.formats.template import SystemTurn, Template
from openforge.gateway.formats.values import to_json
from openforge.gateway.formats.vocabulary import token_ids
from openforge.gateway.turn import Message, Tool, ToolCall

BEGIN, START, END = "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"
TURN_END, MESSAGE_END, TEXT_END = "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"
DATE = "26 Jul 2024"
"""What the templates say where they are not told the date."""
ROLES = {"tool": "ipython"}


class Llama3:
    name = "llama3"

    def __init__(self, tokenizer: Any) -> None:
        turn_end, message_end, text_end, *_ = token_ids(tokenizer, self.name, (TURN_END, MESSAGE_END, TEXT_END, START, END, BEGIN))
        self.stop_token_ids: tuple[int, ...] = (turn_end, message_end, text_end)
        # A model told that its environment is ipython ends a call's message with <|eom_id|>.
        self.closing_token_ids = frozenset((turn_end, message_end))
        self._head = SystemTurn(Template(tokenizer, self.name, date_string=DATE), _tool, "")

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        has_system = bool(messages) and messages[0].role == "system"
        head = self._head.render(messages[0].content.strip() if has_system else None, tools)
        rest = messages[has_system:]
        # The head ends inside the first user message, behind the tools if there are any.
        if rest and rest[0].role == "user":
            return head + _body(rest[0]) + TURN_END + _turns(rest[1:]) + _header("assistant")
        head = head + TURN_END if tools else head.removesuffix(_header("user"))
        return head + _turns(rest) + _header("assistant")

    def opening(self, tools: Sequence[Tool], *, after: Message) -> str:
        return _header("assistant")

    def reply(self, message: Message) -> str:
        return _body(message) + TURN_END

    def continuation(self, messages: Sequence[Message], tools: Sequence[Tool], *, after: Message, closed: bool) -> str:
        return ("" if closed else TURN_END) + _turns(messages) + _header("assistant")

    def parser(self, tools: Sequence[Tool]) -> Llama3Parser:
        return Llama3Parser(tools)


def _header(role: str) -> str:
    return f"{START}{role}{END}\n\n"


def _turns(messages: Sequence[Message]) -> str:
    return "".join(_header(ROLES.get(message.role, message.role)) + _body(message) + TURN_END for message in messages)


def _body(message: Message) -> str:
    if message.role == "tool":
        return to_json(message.content)
    text = message.content.strip()
    calls = "; ".join(map(_call, message.tool_calls))
    return f"{text}{PYTHON_TAG}{calls}" if text and calls else text + calls


def _call(call: ToolCall) -> str:
    # Arguments a client mangled are shown as the string they are; everything the model wrote itself is a JSON object already.
    parameters = call.arguments if is_json(call.arguments) else to_json(call.arguments)
    return f'{{"name": {to_json(call.name)}, "parameters": {parameters}}}'


def _tool(tool: Tool) -> str:
    return json.dumps({"type": "function", "function": tool.record()}, ensure_ascii=False, indent=4)
