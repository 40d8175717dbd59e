from __future__ import annotations

import pytest
import torch
from forest_cases import SIZE
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3NextConfig,
)

from openforge.trees.architecture import check_config, check_model
from openforge.trees.attention import BACKEND
from openforge.types import UserError

REFUSED: list[tuple[PretrainedConfig, str]] = [
    (MistralConfig(**SIZE, sliding_window=8), "sliding window"),
    (Qwen2Config(**SIZE, use_sliding_window=True, sliding_window=8, max_window_layers=0), "sliding_attention"),
    (GptOssConfig(num_hidden_layers=2), "sliding_attention"),
    (Qwen3NextConfig(num_hidden_layers=4), "linear_attention"),
    (LlamaConfig(**SIZE, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}), "dynamic"),
]


@pytest.mark.parametrize(("config", "reason"), REFUSED, ids=[f"{c.model_type}-{r}" for c, r in REFUSED])
def test_attention_that_is_not_plain_causal_is_refused_by_name(config: PretrainedConfig, reason: str) -> None:
    with pytest.raises(UserError, match=f"{config.model_type}.*{reason}"):
        check_config(config)


@pytest.mark.parametrize(
    "config", [LlamaConfig(**SIZE), Qwen2Config(**SIZE), Qwen3Config(**SIZE), MistralConfig(**SIZE, sliding_window=None)]
)
def test_plain_causal_attention_is_accepted(config: PretrainedConfig) -> None:
    check_model(AutoModelForCausalLM.from_config(config, attn_implementation=BACKEND, dtype=torch.float32))


def test_sinks_without_sliding_layers_are_refused_by_name() -> None:
    config = GptOssConfig(
        vocab_size=8,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_local_experts=2,
        num_experts_per_tok=1,
        layer_types=["full_attention"],
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with pytest.raises(UserError, match=r"gpt_oss.*sinks"):
        check_model(model)
