"""Model-side formats by name; one file each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openforge.gateway.formats.base import Format, ReplyParser
from openforge.gateway.formats.hermes import Hermes
from openforge.types import UserError

__all__ = ["Format", "ReplyParser", "load_format"]

FORMATS: dict[str, Callable[[Any], Format]] = {"hermes": Hermes}


def load_format(name: str | None, tokenizer: Any) -> Format:
    """The format `name` for a Hugging Face tokenizer; None chooses by its chat template.

    Raises UserError for an unknown name, for a template no format is known for, and for a tokenizer the format does not fit.
    """
    if name is None:
        template = tokenizer.chat_template or ""
        if not isinstance(template, str) or "<|im_start|>" not in template:
            raise UserError(f"model.format: cannot tell the format from the chat template; set it to one of: {', '.join(FORMATS)}")
        name = "hermes"
    if name not in FORMATS:
        raise UserError(f"model.format: unknown format {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name](tokenizer)
