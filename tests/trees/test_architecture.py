from __future__ import annotations

import numpy as np
import pytest
import torch
from forest_cases import SIZE, VOCABULARY, root_path
from layout_cases import segment_tree
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BertConfig,
    BloomConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    JambaConfig,
    Lfm2Config,
    LlamaConfig,
    MambaConfig,
    MiniMaxConfig,
    MiniMaxM2Config,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3NextConfig,
    T5Config,
)

from openforge.trees.architecture import PLAIN, check_config
from openforge.trees.attention import BACKEND
from openforge.trees.backends.segments import segment_backend
from openforge.trees.forward import forward
from openforge.types import UserError

REFUSED: list[tuple[PretrainedConfig, str]] = [
    (MistralConfig(**SIZE, sliding_window=8), "sliding window"),
    (Qwen2Config(**SIZE, use_sliding_window=True, sliding_window=8, max_window_layers=0), "sliding_attention"),
    (GptOssConfig(num_hidden_layers=2), "sliding_attention"),
    (GptOssConfig(num_hidden_layers=1, layer_types=["full_attention"]), "sinks"),
    (BertConfig(), "not among"),
    (Qwen3NextConfig(num_hidden_layers=4), "linear_attention"),
    (Gemma2Config(**SIZE), "sliding_attention"),
    (Gemma2Config(**SIZE, layer_types=["full_attention"] * 2), "caps attention logits"),
    (Gemma3TextConfig(**SIZE, layer_types=["sliding_attention", "full_attention"]), "sliding_attention"),
    (MiniMaxConfig(num_hidden_layers=2), "linear_attention"),
    (MambaConfig(), "linear_attention"),
    (JambaConfig(), "linear_attention"),
    (FalconConfig(alibi=True), "ALiBi"),
    (BloomConfig(), "ALiBi"),
    (Lfm2Config(), "convolutions"),
    (T5Config(), "encoder-decoder"),
    (LlamaConfig(**SIZE, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}), "dynamic"),
]


@pytest.mark.parametrize(("config", "reason"), REFUSED, ids=[f"{c.model_type}-{r}" for c, r in REFUSED])
def test_attention_that_is_not_plain_causal_is_refused_by_name(config: PretrainedConfig, reason: str) -> None:
    with pytest.raises(UserError, match=f"{config.model_type}.*{reason}"):
        check_config(config)


@pytest.mark.parametrize(
    "config",
    [
        Qwen2Config(**SIZE, use_sliding_window=True, sliding_window=8, max_window_layers=2),
        MistralConfig(**SIZE, sliding_window=None),
        MiniMaxM2Config(attn_type_list=[1] * 62, rotary_dim=64, use_qk_norm=True, use_mtp=True),
    ],
    ids=["qwen2-window-in-no-layer", "mistral-without-window", "minimax_m2-as-released"],
)
def test_configurations_that_only_mention_other_attention_are_let_through(config: PretrainedConfig) -> None:
    check_config(config)


TINY = (
    SIZE
    | dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4)
    | dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 8)
    | dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1)
    | {"num_experts_per_tok": 2, "head_dim": 4}
)
LATENT = {"num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 6}
TINY_OF = {"deepseek_v3": LATENT, "mistral": {"sliding_window": None}}


def tiny(model_type: str) -> PretrainedConfig:
    fields = AutoConfig.for_model(model_type)
    sizes = {name: value for name, value in TINY.items() if hasattr(fields, name)}
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    return AutoConfig.for_model(model_type, **(sizes | tokens | TINY_OF.get(model_type, {})))


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted(PLAIN))
def test_what_is_let_through_computes_in_a_tree_what_it_computes_in_sequences(model_type: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny(model_type), attn_implementation=BACKEND, dtype=torch.float32).eval()
    check_config(model.config)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    tree = segment_tree([3, 2, 1, 4, 2], [-1, 0, 1, 1, 0], [0, 3, 5, 5, 3])
    tree.tokens[:] = np.random.default_rng(0).integers(0, VOCABULARY, len(tree.tokens))
    with torch.no_grad():
        hidden = forward(model, tree, segment_backend)
        model.set_attn_implementation("sdpa")
        for at in range(len(tree.tokens)):
            expected = model.base_model(input_ids=torch.tensor([root_path(tree, at)])).last_hidden_state[0, -1]
            torch.testing.assert_close(hidden[at], expected, rtol=1e-4, atol=1e-4)
