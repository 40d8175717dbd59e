"""Stop strings: looks for them in the text of the tokens sampled last.

Invariant: whether a reply has reached a stop string depends on its sampled tokens alone, so the ids recorded end with the token that
completes the string.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from transformers import AutoTokenizer

from openforge.types import UserError

Decode = Callable[[Sequence[int]], str]


def load_decode(path: Path) -> Decode:
    """The model folder's tokenizer as ids to text, special tokens included."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:
        raise UserError(
            f"{path}: stop strings need the model's tokenizer, and it cannot be loaded; put its files into the folder"
        ) from error

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    return decode


def reached(sampled: Sequence[int], stop: Sequence[str], decode: Decode) -> bool:
    """Whether the last of `sampled` completes one of `stop`; to be asked after every token."""
    # A token adds a byte at least. One more in front, because decoders treat the first token of a text differently.
    text = decode(sampled[-1 - max(len(s.encode()) for s in stop) :])
    return any(s in text for s in stop)
