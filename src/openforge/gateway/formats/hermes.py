"""ChatML with Hermes tool calls: SmolLM2, Qwen 2.5 and 3, Hermes, and any ChatML model taught to call tools.

    <|im_start|>system … <tools> one JSON schema a line </tools> …<|im_end|>
    <|im_start|>assistant <tool_call>{"name": …, "arguments": {…}}</tool_call><|im_end|>
    <|im_start|>user <tool_response>…</tool_response><|im_end|>          (one user turn for a run of results)

Convention: NousResearch, Hermes-Function-Calling; `<think>` as Qwen 3 writes it. Invariant: without tools the rendering equals the
tokenizer's own ChatML template, its default system message included. Reasoning is kept wherever the client sends it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from openforge.gateway.formats.hermes_parser import CALL_CLOSE, CALL_OPEN, THINK_CLOSE, THINK_OPEN, HermesParser
from openforge.gateway.turn import Message, Tool, ToolCall
from openforge.types import UserError

START, END = "<|im_start|>", "<|im_end|>"
GENERATION_PROMPT = f"{START}assistant\n"


class Hermes:
    name = "hermes"

    def __init__(self, tokenizer: Any) -> None:
        vocabulary = tokenizer.get_vocab()
        missing = [token for token in (START, END) if token not in vocabulary]
        if missing:
            raise UserError(f"model.format: hermes needs the tokens {START} and {END}; this tokenizer lacks {' and '.join(missing)}")
        self.stop_token_ids = (vocabulary[END], *(vocabulary[token] for token in ("<|endoftext|>",) if token in vocabulary))
        self.closing_token_ids = frozenset(self.stop_token_ids[:1])
        self._default_system = _default_system(tokenizer)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        has_system = bool(messages) and messages[0].role == "system"
        system = messages[0].content if has_system else None
        if tools:
            system = f"{system}\n\n{_preamble(tools)}" if system else _preamble(tools)
        elif system is None:
            system = self._default_system
        head = "" if system is None else _turn("system", system) + "\n"
        return head + _turns(messages[has_system:]) + GENERATION_PROMPT

    def opening(self, tools: Sequence[Tool], *, after: Message) -> str:
        return f"\n{GENERATION_PROMPT}"

    def reply(self, message: Message) -> str:
        return _assistant(message) + END

    def continuation(self, messages: Sequence[Message], tools: Sequence[Tool], *, after: Message, closed: bool) -> str:
        return f"{'' if closed else END}\n{_turns(messages)}{GENERATION_PROMPT}"

    def parser(self, tools: Sequence[Tool]) -> HermesParser:
        return HermesParser()


def _turn(role: str, text: str) -> str:
    return f"{START}{role}\n{text}{END}"


def _turns(messages: Sequence[Message]) -> str:
    parts = []
    for is_tool, run in groupby(messages, lambda message: message.role == "tool"):
        if is_tool:
            parts.append(_turn("user", "\n".join(f"<tool_response>\n{message.content}\n</tool_response>" for message in run)))
        else:
            parts.extend(_turn(m.role, _assistant(m) if m.role == "assistant" else m.content) for m in run)
    return "".join(f"{part}\n" for part in parts)


def _assistant(message: Message) -> str:
    think = f"{THINK_OPEN}\n{message.reasoning}\n{THINK_CLOSE}\n\n" if message.reasoning else ""
    body = [message.content] if message.content else []
    return think + "\n".join([*body, *map(_call, message.tool_calls)])


def _call(call: ToolCall) -> str:
    # Arguments a client mangled are shown as the string they are; everything the model wrote itself is a JSON object already.
    arguments = call.arguments if _is_json(call.arguments) else json.dumps(call.arguments, ensure_ascii=False)
    name = json.dumps(call.name, ensure_ascii=False)
    return f'{CALL_OPEN}\n{{"name": {name}, "arguments": {arguments}}}\n{CALL_CLOSE}'


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


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
