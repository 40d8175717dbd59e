"""Stop strings, also those that span tokens."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from openforge.engines.rollout import TorchEngine
from openforge.engines.rollout.stops import load_decode, reached
from openforge.types import FinishReason, SampledToken, Sampling, UserError

VOCABULARY = 199


async def gather_tokens(engine: TorchEngine, sampling: Sampling) -> tuple[list[SampledToken], FinishReason | None]:
    tokens: list[SampledToken] = []
    finish = None
    async for chunk in engine.generate([5, 6, 7], sampling):
        tokens += chunk.tokens
        finish = chunk.finish
    return tokens, finish


@pytest.fixture
def with_tokenizer(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    """The tiny model with a tokenizer of one two-letter word a token."""
    path = shutil.copytree(tiny_model("llama"), tmp_path / "model")
    words = {chr(97 + i // 26) + chr(97 + i % 26): i for i in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="aa"))
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(path)
    return path


async def test_a_reply_ends_with_the_token_that_completes_a_stop_string(with_tokenizer: Path) -> None:
    decode = load_decode(with_tokenizer)
    engine = TorchEngine(with_tokenizer, dtype="float32", kv_tokens=1024)
    try:
        free, _ = await gather_tokens(engine, Sampling(max_tokens=20, seed=1))
        text = decode([t.id for t in free])
        stop = text[9:14]  # from the second letter of one token to that of another, two tokens on
        end = (text.index(stop) + len(stop) + 1) // 2
        tokens, finish = await gather_tokens(engine, Sampling(max_tokens=20, seed=1, stop=("never", stop)))
    finally:
        await engine.close()
    assert finish is FinishReason.STOP
    assert [t.id for t in tokens] == [t.id for t in free[:end]]


def test_only_the_end_of_a_long_reply_is_decoded() -> None:
    seen: list[int] = []

    def decode(ids: object) -> str:
        seen.append(len(list(ids)))  # type: ignore[call-overload]
        return "xyz"

    assert reached(range(10_000), ("yz",), decode)
    assert seen == [3]


async def test_stop_strings_without_a_tokenizer_are_a_user_error(tiny_model: Callable[[str], Path]) -> None:
    engine = TorchEngine(tiny_model("llama"), dtype="float32", kv_tokens=1024)
    try:
        with pytest.raises(UserError, match="tokenizer"):
            await gather_tokens(engine, Sampling(stop=("x",)))
    finally:
        await engine.close()
