"""The special tokens that a format cannot do without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openforge.types import UserError


def token_ids(tokenizer: Any, format: str, tokens: Sequence[str]) -> list[int]:
    """Their ids. Raises UserError if the tokenizer lacks one."""
    vocabulary = tokenizer.get_vocab()
    if missing := [token for token in tokens if token not in vocabulary]:
        raise UserError(f"model.format: {format} needs the tokens {' and '.join(tokens)}; this tokenizer lacks {' and '.join(missing)}")
    return [vocabulary[token] for token in tokens]
