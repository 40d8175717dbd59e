"""Tokens a second of the embedded rollout engine, next to transformers' own batched `generate` on the same model.

Both sample at temperature 1 with random prompts and no stop token; the engine also returns log-probabilities, `generate` does not. The two
take turns within one run, so that what else the machine does meets both; figures are medians over the repeats.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig

from openforge.bench.frame import BenchResult, at_least, median
from openforge.bench.model import model_folder
from openforge.engines.rollout import TorchEngine
from openforge.engines.rollout.model import DType
from openforge.types import Sampling

PROMPT_TOKENS = 100
NEW_TOKENS = 64
BARS = {8: 1.0, 32: 1.5}
CONFIG = LlamaConfig(
    vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
)


def run(
    model: Path | None,
    repeats: int = 3,
    *,
    concurrency: tuple[int, ...] = (1, 8, 32),
    new_tokens: int = NEW_TOKENS,
    dtype: DType = "auto",
    threads: int | None = None,
) -> BenchResult:
    """Measure the model folder `model`, or with None a tiny random one (for trying the benchmark out)."""
    with model_folder(model, CONFIG) as path:
        return asyncio.run(_measure(path, repeats, concurrency, new_tokens, dtype, threads))


async def _measure(
    path: Path, repeats: int, concurrency: tuple[int, ...], new_tokens: int, dtype: DType, threads: int | None
) -> BenchResult:
    engine = TorchEngine(path, dtype=dtype, max_batch=max(concurrency), kv_tokens=16_384, threads=threads)
    try:
        reference = AutoModelForCausalLM.from_pretrained(path, dtype=engine.dtype, local_files_only=True).eval().to(engine.device)
        generator = torch.Generator().manual_seed(0)
        # Ids both know as plain tokens; new prompts for each measurement, so that nothing is in the prefix cache.
        low, high = 100, reference.config.vocab_size
        rows = []
        bars = []
        for count in concurrency:
            ours, theirs = [], []
            for repeat in range(repeats + 1):
                prompts = torch.randint(low, high, (count, PROMPT_TOKENS), generator=generator)
                elapsed = await _engine_seconds(engine, prompts.tolist(), new_tokens), _generate_seconds(reference, prompts, new_tokens)
                if repeat:  # the first is warm-up
                    ours.append(elapsed[0])
                    theirs.append(elapsed[1])
            tokens = count * new_tokens
            ratio = median([b / a for a, b in zip(ours, theirs, strict=True)])
            rows.append(
                {
                    "concurrent": count,
                    "engine tokens/s": tokens / median(ours),
                    "generate tokens/s": tokens / median(theirs),
                    "ratio": ratio,
                }
            )
            if count in BARS:
                bars.append(at_least(f"vs_generate_{count}", ratio, BARS[count]))
    finally:
        await engine.close()
    return BenchResult("engine", rows, bars)


async def _engine_seconds(engine: TorchEngine, prompts: list[list[int]], new_tokens: int) -> float:
    async def one(prompt: list[int]) -> int:
        return sum([len(chunk.tokens) async for chunk in engine.generate(prompt, Sampling(temperature=1.0, max_tokens=new_tokens))])

    start = time.perf_counter()
    counts = await asyncio.gather(*(one(prompt) for prompt in prompts))
    assert set(counts) == {new_tokens}
    return time.perf_counter() - start


def _generate_seconds(model: Any, prompts: torch.Tensor, new_tokens: int) -> float:
    config = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=new_tokens, eos_token_id=None, pad_token_id=0, use_cache=True
    )
    prompts = prompts.to(model.device)
    start = time.perf_counter()
    with torch.inference_mode():
        output = model.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=config)
    assert output.shape[1] == prompts.shape[1] + new_tokens
    return time.perf_counter() - start
