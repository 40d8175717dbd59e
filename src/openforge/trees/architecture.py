"""Which models a tree can be trained on: those whose attention is plain causal.

Invariant: an architecture that a tree would only approximate is refused by name, never trained. What a configuration says rules out
much, but not all (ALiBi, convolutions, differential attention have no field of their own), so only types that the tests compare with
separate sequences are let through.
"""

from __future__ import annotations

from transformers import PretrainedConfig

from openforge.types import UserError

PLAIN = frozenset(
    {
        "apertus",
        "arcee",
        "deepseek_v3",
        "ernie4_5",
        "gemma",
        "glm4",
        "glm4_moe",
        "gpt_neox",
        "granite",
        "granitemoe",
        "hunyuan_v1_dense",
        "llama",
        "minimax_m2",
        "mistral",
        "mixtral",
        "olmo2",
        "olmoe",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "seed_oss",
        "smollm3",
        "starcoder2",
    }
)
"""`model_type`s whose attention is plain and causal, unless their configuration says otherwise."""


_OTHERS = {
    "bloom": "uses ALiBi position biases",
    "diffllama": "subtracts two attentions",
    "doge": "learns its attention mask",
    "gpt_oss": "has attention sinks",
    "lfm2": "has convolutions",
    "lfm2_moe": "has convolutions",
    "mpt": "uses ALiBi position biases",
    "rwkv": "is recurrent",
    "xlstm": "is recurrent",
}


def check_config(config: PretrainedConfig) -> None:
    """Raise `UserError`, naming the architecture and the reason, unless every layer's attention is plain and causal."""
    reason = _reason(config)
    if reason:
        name = (config.architectures or [config.model_type])[0]
        raise UserError(f"{name} {reason}: tree training supports plain causal attention only; choose another model")


def _reason(config: PretrainedConfig) -> str | None:
    if getattr(config, "is_encoder_decoder", False):
        return "is an encoder-decoder model"
    layer_types = (
        getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or getattr(config, "attn_type_list", None)
    )
    other = sorted({str(kind) for kind in layer_types or [] if kind not in ("full_attention", 1)})
    if other:
        return f"has layers of type {', '.join(other)}"
    if not layer_types and getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True):
        return f"uses a sliding window of {config.sliding_window} tokens"
    if getattr(config, "attn_logit_softcapping", None):
        return "caps attention logits"
    if getattr(config, "alibi", False):
        return "uses ALiBi position biases"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in ("dynamic", "longrope"):
        return f"scales its rotary positions with the sequence length ({rope})"
    if config.model_type not in PLAIN:
        return _OTHERS.get(config.model_type, "is not among the architectures known to be plain")
    return None
