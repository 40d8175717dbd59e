from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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

from openforge.bench.float64 import to_float64
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


def random_model(name: str) -> PreTrainedModel:
    """With weights in float64; like all of transformers', it rounds to float32 here and there."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation=BACKEND, dtype=torch.float64).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def float64_model(name: str) -> PreTrainedModel:
    return to_float64(random_model(name))


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
