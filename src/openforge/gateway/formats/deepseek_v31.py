"""DeepSeek V3.1, V3.1-Terminus and V3.2-Exp: fullwidth tokens, calls and results between tokens of their own.

    <｜begin▁of▁sentence｜> system, tools <｜User｜> … <｜Assistant｜></think> text
    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜> … <｜tool▁calls▁end｜><｜end▁of▁sentence｜>
    <｜tool▁output▁begin｜> … <｜tool▁output▁end｜> and the model goes on, without <｜Assistant｜>

Convention: DeepSeek's chat template, and the model card for the tools, which the template leaves to its caller. Reasoning rule: a reply
opens with `<think>` (`deepseek_v31_thinking`) or `</think>`; the template renders no reasoning of earlier replies.

Invariant: the rendering equals the template's. Three things differ where it would break the prefix or leave the model without a mark.
System text in mid-list stays where it is, folded into its neighbour, and does not move to the head. A reply behind a reply is opened like
any other. A thinking prompt ends with `<think>` behind tool results too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from openforge.gateway.formats.base import ReplyParser
from openforge.gateway.formats.deepseek_v31_parser import CALL_BEGIN, CALL_END, CALLS_BEGIN, CALLS_END, SEPARATOR, DeepSeekV31Parser
from openforge.gateway.formats.fold import fold_systems
from openforge.gateway.formats.think_parser import THINK_CLOSE, THINK_OPEN, ThinkParser
from openforge.gateway.formats.vocabulary import token_ids
from openforge.gateway.turn import Message, Tool, ToolCall

BEGIN, END, USER, ASSISTANT = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"
OUTPUT_BEGIN, OUTPUT_END = "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"
TOKENS = (
    END,
    BEGIN,
    USER,
    ASSISTANT,
    THINK_OPEN,
    THINK_CLOSE,
    CALLS_BEGIN,
    CALL_BEGIN,
    SEPARATOR,
    CALL_END,
    CALLS_END,
    OUTPUT_BEGIN,
    OUTPUT_END,
)

RULES = f"""
IMPORTANT: ALWAYS adhere to this exact format for tool use:
{CALLS_BEGIN}{CALL_BEGIN}tool_call_name{SEPARATOR}tool_call_arguments{CALL_END}{{{{additional_tool_calls}}}}{CALLS_END}

Where:

- `tool_call_name` must be an exact match to one of the available tools
- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema
- For multiple tool calls, chain them directly without separators or spaces
"""


class DeepSeekV31:
    def __init__(self, tokenizer: Any, *, thinking: bool = False) -> None:
        self.name = "deepseek_v31_thinking" if thinking else "deepseek_v31"
        end, *_ = token_ids(tokenizer, self.name, TOKENS)
        self.stop_token_ids: tuple[int, ...] = (end,)
        self.closing_token_ids = frozenset(self.stop_token_ids)
        self._thinking = thinking

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        system, rest = head(messages)
        return BEGIN + system + (_tools(tools) if tools else "") + self._turns(fold_systems(rest, head=False), after=None)

    def opening(self, tools: Sequence[Tool], *, after: Message) -> str:
        return self._opening(after)

    def reply(self, message: Message) -> str:
        return (message.reasoning + THINK_CLOSE if self._thinking else "") + _body(message)

    def continuation(self, messages: Sequence[Message], tools: Sequence[Tool], *, after: Message, closed: bool) -> str:
        return ("" if closed else END) + self._turns(fold_systems(messages, head=False), after=after)

    def parser(self, tools: Sequence[Tool]) -> ReplyParser:
        calls = DeepSeekV31Parser()
        return ThinkParser(calls, prefilled=True, call_open=CALLS_BEGIN) if self._thinking else calls

    def _turns(self, messages: Sequence[Message], *, after: Message | None) -> str:
        parts = []
        for message in messages:
            if message.role == "assistant":
                goes_on = after is not None and after.role == "tool"
                parts.append(("" if goes_on else ASSISTANT + THINK_CLOSE) + _body(message))
            elif message.role == "tool":
                parts.append(OUTPUT_BEGIN + message.content + OUTPUT_END)
            else:
                parts.append(USER + message.content)
            after = message
        return "".join(parts) + self._opening(after)

    def _opening(self, after: Message | None) -> str:
        goes_on = after is not None and after.role == "tool"
        return ("" if goes_on else ASSISTANT) + (THINK_OPEN if self._thinking else "" if goes_on else THINK_CLOSE)


def head(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """The system text at the head, and the messages behind it."""
    count = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    return "\n\n".join(message.content for message in messages[:count]), messages[count:]


def _body(message: Message) -> str:
    calls = "".join(map(_call, message.tool_calls))
    return message.content + (CALLS_BEGIN + calls + CALLS_END if calls else "") + END


def _call(call: ToolCall) -> str:
    return CALL_BEGIN + call.name + SEPARATOR + call.arguments + CALL_END


def _tools(tools: Sequence[Tool]) -> str:
    rows = (
        f"\n### {tool.name}\nDescription: {tool.description}\n\nParameters: {json.dumps(tool.parameters, ensure_ascii=False)}\n"
        for tool in tools
    )
    return "\n\n## Tools\nYou have access to the following tools:\n" + "".join(rows) + RULES
