"""ChatML, and the `<tool_response>` turns that SmolLM2, Qwen and Hermes models share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from openforge.gateway.formats.vocabulary import token_ids
from openforge.gateway.turn import Message

START, END = "<|im_start|>", "<|im_end|>"
ASSISTANT = f"{START}assistant\n"
RESPONSE_OPEN, RESPONSE_CLOSE = "<tool_response>", "</tool_response>"


def stop_token_ids(tokenizer: Any, format: str) -> tuple[int, ...]:
    """The end of a turn, then the end of a text where the tokenizer has one. Raises UserError if it knows no ChatML."""
    end, _ = token_ids(tokenizer, format, (END, START))
    text_end = tokenizer.get_vocab().get("<|endoftext|>")
    return (end,) if text_end is None else (end, text_end)


def turn(role: str, text: str) -> str:
    return f"{START}{role}\n{text}{END}\n"


def tool_response(message: Message) -> str:
    return f"{RESPONSE_OPEN}\n{message.content}\n{RESPONSE_CLOSE}"


def turns(messages: Sequence[Message], write: Callable[[int, Message], str]) -> str:
    """All messages as turns, one user turn for a run of tool results. `write(index, message)` gives an assistant message's text."""
    parts: list[str] = []
    for is_tool, run in groupby(enumerate(messages), lambda item: item[1].role == "tool"):
        if is_tool:
            parts.append(turn("user", "\n".join(tool_response(message) for _, message in run)))
        else:
            parts += [turn(m.role, write(index, m) if m.role == "assistant" else m.content) for index, m in run]
    return "".join(parts)


def last_query(messages: Sequence[Message], *, default: int) -> int:
    """Index of the last user message that is not a tool result in disguise, which is where Qwen templates begin to keep reasoning."""
    return max((index for index, message in enumerate(messages) if message.role == "user" and not _wrapped(message)), default=default)


def _wrapped(message: Message) -> bool:
    return message.content.startswith(RESPONSE_OPEN) and message.content.endswith(RESPONSE_CLOSE)
