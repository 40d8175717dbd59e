"""ChatML with Hermes tool calls, for models whose own chat template knows no tools (SmolLM2) and are to learn to call them.

    <|im_start|>system … <tools> one JSON schema a line </tools> …<|im_end|>
    <|im_start|>assistant <think>…</think> … <tool_call>{"name": …, "arguments": {…}}</tool_call><|im_end|>
    <|im_start|>user <tool_response>…</tool_response><|im_end|>          (one user turn for a run of results)

Convention: NousResearch, Hermes-Function-Calling; `<think>` as Qwen 3 writes it. Invariant: without tools the rendering equals the
tokenizer's own ChatML template, its default system message included. Reasoning is kept wherever the client sends it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from openforge.gateway.formats.chatml import ASSISTANT, END, START, stop_token_ids, turn, turns
from openforge.gateway.formats.hermes_parser import CALL_CLOSE, CALL_OPEN, HermesParser, text_and_calls
from openforge.gateway.formats.think_parser import ThinkParser, sampled_think
from openforge.gateway.turn import Message, Tool


class Hermes:
    name = "hermes"

    def __init__(self, tokenizer: Any) -> None:
        self.stop_token_ids = stop_token_ids(tokenizer, self.name)
        self.closing_token_ids = frozenset(self.stop_token_ids[:1])
        self._default_system = _default_system(tokenizer)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        has_system = bool(messages) and messages[0].role == "system"
        system = messages[0].content if has_system else None
        if tools:
            system = f"{system}\n\n{_preamble(tools)}" if system else _preamble(tools)
        elif system is None:
            system = self._default_system
        head = "" if system is None else turn("system", system)
        return head + _turns(messages[has_system:]) + ASSISTANT

    def opening(self, tools: Sequence[Tool], *, after: Message) -> str:
        return f"\n{ASSISTANT}"

    def reply(self, message: Message) -> str:
        return _assistant(message) + END

    def continuation(self, messages: Sequence[Message], tools: Sequence[Tool], *, after: Message, closed: bool) -> str:
        return f"{'' if closed else END}\n{_turns(messages)}{ASSISTANT}"

    def parser(self, tools: Sequence[Tool]) -> ThinkParser:
        return ThinkParser(HermesParser(), prefilled=False, call_open=CALL_OPEN)


def _turns(messages: Sequence[Message]) -> str:
    return turns(messages, lambda _, message: _assistant(message))


def _assistant(message: Message) -> str:
    return sampled_think(message.reasoning, prefilled=False) + text_and_calls(message.content, message.tool_calls)


def _preamble(tools: Sequence[Tool]) -> str:
    # Every prompt pays for these tokens, hence compact JSON and a single line of instruction.
    lines = [
        json.dumps(
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}, ensure_ascii=False, separators=(",", ":")
        )
        for tool in tools
    ]
    example = '{"name": <function-name>, "arguments": <args-json-object>}'
    return "\n".join(["<tools>", *lines, "</tools>", f"To call a tool, write {CALL_OPEN}", example, CALL_CLOSE])


def _default_system(tokenizer: Any) -> str | None:
    """What the tokenizer's own template says when no system message is given."""
    if not tokenizer.chat_template:
        return None
    text: str = tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
    opening = f"{START}system\n"
    return text[len(opening) : text.index(END)] if text.startswith(opening) else None
