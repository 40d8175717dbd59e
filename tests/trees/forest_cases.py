from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from openforge.trees.attention import BACKEND
from openforge.types import LineageKind, Trajectory

settings.register_profile("trees", deadline=None, max_examples=25)
settings.load_profile("trees")

VOCABULARY = 5
SIZE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**SIZE, tie_word_embeddings=True),
    "qwen2": lambda: Qwen2Config(**SIZE, tie_word_embeddings=False),
    "qwen3": lambda: Qwen3Config(**SIZE, head_dim=8, tie_word_embeddings=False),
}


class Float64Norm(torch.nn.Module):
    """The models' own norms round to float32, which would hide errors of 1e-9."""

    def __init__(self, weight: torch.nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = weight, epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon)


def float64_model(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation=BACKEND, dtype=torch.float64).eval()
    for parent in list(model.modules()):
        for child, module in list(parent.named_children()):
            if type(module).__name__.endswith("RMSNorm"):
                setattr(parent, child, Float64Norm(module.weight, module.variance_epsilon))
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def trajectory(rollout_id: str, tokens: Sequence[int], trained: Sequence[bool], version: int = 0) -> Trajectory:
    mask = np.array(trained, bool)
    return Trajectory(
        rollout_id=rollout_id,
        kind=LineageKind.MAIN,
        call_ids=[],
        tokens=np.array(tokens, np.int32),
        sampled=mask,
        trained=mask,
        logprobs=np.where(mask, -0.5, 0).astype(np.float32),
        versions=np.where(mask, version, -1).astype(np.int32),
        masked={},
    )


@dataclass
class Forest:
    """Trajectories with random advantages and weights."""

    trajectories: list[Trajectory]
    advantages: dict[str, float]
    weights: list[np.ndarray] = field(default_factory=list)


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    """Few distinct tokens and many extensions of earlier sequences: deep and wide trees, tiny nodes, duplicates, branches anywhere."""
    sequences: list[list[int]] = []
    token = st.integers(0, VOCABULARY - 1)
    for _ in range(draw(st.integers(1, 7))):
        prefix: list[int] = []
        if sequences and draw(st.booleans()):
            earlier = draw(st.sampled_from(sequences))
            prefix = earlier[: draw(st.integers(0, len(earlier)))]
        sequences.append(prefix + draw(st.lists(token, min_size=0 if len(prefix) > 1 else 2, max_size=8)))
    rollouts = [f"r{draw(st.integers(0, 3))}" for _ in sequences]
    trained = [[False, *draw(st.lists(st.booleans(), min_size=len(s) - 1, max_size=len(s) - 1))] for s in sequences]
    numbers = st.floats(-2, 2, width=32)
    return Forest(
        [trajectory(r, s, t) for r, s, t in zip(rollouts, sequences, trained, strict=True)],
        {rollout: draw(numbers) for rollout in rollouts},
        [np.array(draw(st.lists(numbers, min_size=len(s), max_size=len(s))), np.float32) for s in sequences],
    )
