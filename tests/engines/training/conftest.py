from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "trees")]

SIZE = {
    "vocab_size": 48,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


@pytest.fixture(scope="session", params=["tied", "untied"])
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        **SIZE,
        intermediate_size=96,
        tie_word_embeddings=request.param == "tied",
    )
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


@pytest.fixture(scope="session")
def experts_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        **SIZE,
        moe_intermediate_size=32,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
    )
    folder = tmp_path_factory.mktemp("experts")
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder
