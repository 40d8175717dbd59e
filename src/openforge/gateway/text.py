"""Between token ids and text: encoding of new text, and decoding of a reply as it is sampled.

Invariant: decoded pieces add up to the decoding of all ids, and no piece ends inside a UTF-8 character. A stop string and what follows
it are not shown.
"""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
MAX_WINDOW = 64
"""Ids kept back at most while their text does not end on a whole character: sampled garbage need not, ever."""


def own_tokenizer(tokenizer: Any) -> Tokenizer:
    """A copy of a Hugging Face fast tokenizer's core: padding or truncation that others switch on in theirs must not reach prompts."""
    core = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    core.no_truncation()
    core.no_padding()
    return core


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    # The batch form without offsets: half the time of `encode`, and other threads run meanwhile.
    ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


class Detokenizer:
    """Decodes a growing list of ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        """The ids of the last piece, as context (some decoders treat the first token of a text differently), and those after it."""
        self._context = 0
        self._shown = 0
        """Characters of the window's text that are out already."""

    def push(self, id: int) -> str:
        self._window.append(id)
        text = self._decode(self._window)
        whole = text.rstrip(REPLACEMENT)
        if len(whole) == len(text) or len(self._window) - self._context > MAX_WINDOW:
            piece = text[self._shown :]
            self._window = self._window[self._context :]
            self._context = len(self._window)
            self._shown = len(self._decode(self._window))
        else:
            piece = whole[self._shown :]
            self._shown += len(piece)
        return piece

    def finish(self) -> str:
        return self._decode(self._window)[self._shown :]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text


class StopTrimmer:
    """Cuts text at the first stop string, holding back what may be the beginning of one."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped: str | None = None
        """The stop string that was found."""

    def feed(self, text: str) -> str:
        if self.stopped or not self._stops:
            return "" if self.stopped else text
        text = self._held + text
        # The first to be complete counts: that is where the engine stopped, whatever pieces the text came in.
        found = min(((at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0), default=None)
        if found is not None:
            _, at, self.stopped = found
            self._held = ""
            return text[:at]
        keep = max(n for stop in self._stops for n in range(len(stop)) if n == 0 or text.endswith(stop[:n]))
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held
