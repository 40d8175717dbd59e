from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MiniMaxM2Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from openforge.trees.attention import BACKEND
from openforge.types import LineageKind, TokenTree, Trajectory

Contribution = tuple[str, tuple[int, ...], int, float, float, float, int]

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
    "qwen3_moe": lambda: Qwen3MoeConfig(
        **SIZE, head_dim=8, moe_intermediate_size=8, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True
    ),
    "minimax_m2": lambda: MiniMaxM2Config(**SIZE, head_dim=8, num_local_experts=4, num_experts_per_tok=2, rotary_dim=4),
}


class Float64Norm(torch.nn.Module):
    """The models' own norms round to float32, which would hide errors of 1e-9."""

    def __init__(self, weight: torch.nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = weight, epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon)


class Float64Router(torch.nn.Module):
    """The models' own routers round to float32, too. This one remembers which experts it chose."""

    def __init__(self, router: torch.nn.Module, activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight, self.top_k, self.activation = router.weight, router.top_k, activation
        self.chosen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor, correction: torch.Tensor | float = 0.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = torch.nn.functional.linear(x.reshape(-1, x.shape[-1]), self.weight)
        scores = self.activation(logits)
        index = (scores + correction).topk(self.top_k).indices
        chosen = scores.gather(1, index)
        self.chosen.append(index)
        return logits, chosen / chosen.sum(-1, keepdim=True), index


def float64_model(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        CONFIGS[name](), attn_implementation=BACKEND, experts_implementation="eager", dtype=torch.float64
    ).eval()
    for parent in list(model.modules()):
        for child, module in list(parent.named_children()):
            if type(module).__name__.endswith("RMSNorm"):
                setattr(parent, child, Float64Norm(module.weight, module.variance_epsilon))
            elif type(module).__name__.endswith("TopKRouter"):
                setattr(parent, child, Float64Router(module, torch.sigmoid if name == "minimax_m2" else partial(torch.softmax, dim=-1)))
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def trajectory(
    rollout_id: str, tokens: Sequence[int], trained: Sequence[bool], version: int = 0, *, parent: Trajectory | None = None, shared: int = 0
) -> Trajectory:
    """`tokens`, `trained`: its own."""
    mask = np.array(trained, bool)
    return Trajectory(
        rollout_id=rollout_id,
        kind=LineageKind.MAIN,
        parent=parent,
        shared=shared,
        call_ids=[],
        ends=np.empty(0, np.int32),
        tokens=np.array(tokens, np.int32),
        sampled=mask,
        trained=mask,
        logprobs=np.where(mask, -0.5, 0).astype(np.float32),
        versions=np.where(mask, version, -1).astype(np.int32),
        masked={},
    )


def sequence(trajectory: Trajectory) -> list[int]:
    """The whole of it, from the root."""
    above = sequence(trajectory.parent)[: trajectory.shared] if trajectory.parent is not None else []
    return above + trajectory.tokens.tolist()


def root_path(tree: TokenTree, position: int) -> tuple[int, ...]:
    """The tokens from the root to a position, itself included."""
    segment = int(np.searchsorted(tree.starts, position, side="right")) - 1
    tokens = tree.tokens[tree.starts[segment] : position + 1].tolist()
    while (segment := int(tree.parents[segment])) >= 0:
        tokens = tree.tokens[tree.starts[segment] : tree.starts[segment + 1]].tolist() + tokens
    return tuple(tokens)


def contributions(tree: TokenTree) -> list[Contribution]:
    """Sorted: rollout, the whole sequence before the target, target, behaviour log-probability, advantage, weight, version."""
    columns = zip(tree.rows, tree.at, tree.targets, tree.logprobs, tree.advantages, tree.weights, tree.versions, strict=True)
    return sorted(
        (tree.rollout_ids[row], root_path(tree, int(at)), int(target), float(lp), float(adv), float(weight), int(version))
        for row, at, target, lp, adv, weight, version in columns
    )


@dataclass
class Forest:
    """Trajectories with random advantages and weights."""

    trajectories: list[Trajectory]
    advantages: dict[str, float]
    weights: list[np.ndarray] = field(default_factory=list)


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    """Few distinct tokens, and lineages that leave others anywhere: deep chains, wide fans, tiny nodes, duplicates, branches in sampled
    text, replies without a token, sub-agents with a root of their own; parents that are not trained, or not among the trajectories."""
    made: list[Trajectory] = []
    last, latest = draw(st.integers(0, 3)), draw(st.booleans())
    for _ in range(draw(st.integers(1, 9))):
        rollout, parent, shared = f"r{draw(st.integers(0, last))}", None, 0
        own = [other for other in made if other.rollout_id == rollout and len(other.tokens)]
        if own and draw(st.integers(0, 3)):
            parent = own[-1] if latest else draw(st.sampled_from(own))
            shared = parent.shared + draw(st.integers(1, len(parent.tokens)))
        if made and draw(st.integers(0, 3)) == 0:  # what another rollout, or another lineage, has said as well
            tokens = draw(st.sampled_from(made)).tokens.tolist()
        else:
            tokens = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=0 if parent else 1, max_size=8))
        trained = draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
        if parent is None and trained:
            trained[0] = False
        made.append(trajectory(rollout, tokens, trained, parent=parent, shared=shared))
    kept = [item for item in made if draw(st.integers(0, 4))]
    numbers = st.floats(-2, 2, width=32)
    return Forest(
        kept,
        {item.rollout_id: draw(numbers) for item in kept},
        [np.array(draw(st.lists(numbers, min_size=len(item.tokens), max_size=len(item.tokens))), np.float32) for item in kept],
    )
