from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

VOCABULARY = 199

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}


def _save(kind: str, path: Path) -> Path:
    configs = {
        "llama": lambda: LlamaConfig(**SIZES, tie_word_embeddings=True),
        "qwen2": lambda: Qwen2Config(**SIZES, tie_word_embeddings=False),
        "qwen3": lambda: Qwen3Config(**SIZES, head_dim=24, tie_word_embeddings=True),
        "window": lambda: Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=24, max_window_layers=1),
    }
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(configs[kind]()).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a random model: `llama` (tied), `qwen2`, `qwen3`, `window` (one sliding-window layer)."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            made[kind] = _save(kind, tmp_path_factory.mktemp(kind))
        return made[kind]

    return get


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
