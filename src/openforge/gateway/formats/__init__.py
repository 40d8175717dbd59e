"""Model-side formats by name; one file each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from openforge.gateway.formats.base import Format, ReplyParser
from openforge.gateway.formats.deepseek_v31 import DeepSeekV31
from openforge.gateway.formats.deepseek_v32 import DSML, DeepSeekV32
from openforge.gateway.formats.hermes import Hermes
from openforge.gateway.formats.llama3 import Llama3
from openforge.gateway.formats.minimax_m2 import MiniMaxM2
from openforge.gateway.formats.qwen3 import Qwen3
from openforge.gateway.formats.qwen3_5 import Qwen35
from openforge.gateway.formats.qwen3_coder import Qwen3Coder
from openforge.gateway.formats.template import check_rendering
from openforge.types import UserError

__all__ = ["Format", "ReplyParser", "load_format"]

FORMATS: dict[str, Callable[[Any], Format]] = {
    "llama3": Llama3,
    "deepseek_v31": DeepSeekV31,
    "deepseek_v31_thinking": partial(DeepSeekV31, thinking=True),
    "deepseek_v32": DeepSeekV32,
    "deepseek_v32_thinking": partial(DeepSeekV32, thinking=True),
    "minimax_m2": MiniMaxM2,
    "qwen3_coder": Qwen3Coder,
    "qwen3_5": Qwen35,
    "qwen3": Qwen3,
    "hermes": Hermes,
}

MARKS: dict[str, tuple[str, ...]] = {
    "llama3": ("<|start_header_id|>", "<|eot_id|>", "ipython"),
    "deepseek_v31": ("<｜Assistant｜></think>", "<｜tool▁calls▁begin｜>"),
    "minimax_m2": ("<minimax:tool_call>",),
    "qwen3_5": ("<function=", "<think>"),
    "qwen3_coder": ("<function=",),
    "qwen3": ("<|im_start|>", "<tool_call>"),
    "hermes": ("<|im_start|>",),
}
"""What a format's chat template holds; the first format with all of its marks is the model's."""

CHECKED = ("minimax_m2", "qwen3_coder", "qwen3_5", "qwen3")
"""Formats that ask the template about itself: they are chosen only for one that then renders an example as they do."""


def load_format(name: str | None, tokenizer: Any) -> Format:
    """The format `name` for a Hugging Face tokenizer; None chooses by its chat template.

    Raises UserError for an unknown name, for a template no format is known for, and for a tokenizer the format does not fit.
    """
    chosen = _choose(tokenizer) if name is None else name
    if chosen is None:
        raise UserError(f"model.format: cannot tell the format from the chat template; set it to one of: {', '.join(FORMATS)}")
    if chosen not in FORMATS:
        raise UserError(f"model.format: unknown format {chosen!r}; known: {', '.join(FORMATS)}")
    format = FORMATS[chosen](tokenizer)
    if name is None and chosen in CHECKED:
        check_rendering(format, tokenizer)
    return format


def _choose(tokenizer: Any) -> str | None:
    template = tokenizer.chat_template
    if template is None and DSML in tokenizer.get_vocab():
        # DeepSeek V3.2 ships a script in place of a template.
        return "deepseek_v32"
    marks = MARKS.items() if isinstance(template, str) else ()
    return next((name for name, marks in marks if all(mark in template for mark in marks)), None)
