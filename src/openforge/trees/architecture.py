"""Which models a tree can be trained on: those whose attention is plain causal.

Invariant: an architecture that a tree would only approximate is refused by name, never trained.
"""

from __future__ import annotations

from transformers import PretrainedConfig, PreTrainedModel

from openforge.types import UserError

_LAYER_TYPES = ("layer_types", "layers_block_type", "attn_type_list")


def check_config(config: PretrainedConfig) -> None:
    """Raise `UserError`, naming the architecture and the reason, unless every layer's attention is plain and causal."""
    reason = _config_reason(config)
    if reason:
        raise _refusal(config, reason)


def check_model(model: PreTrainedModel) -> None:
    """As `check_config`, and also look at what the model's code and parameters tell."""
    check_config(model.config)
    if not model._supports_attention_backend:
        raise _refusal(model.config, "does not use transformers' attention interface")
    if any(name.endswith("sinks") for name, _ in model.named_parameters()):
        raise _refusal(model.config, "has attention sinks")


def _config_reason(config: PretrainedConfig) -> str | None:
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
    return None


def _refusal(config: PretrainedConfig, reason: str) -> UserError:
    name = (config.architectures or [config.model_type])[0]
    return UserError(f"{name} {reason}: tree training supports plain causal attention only; choose another model")
