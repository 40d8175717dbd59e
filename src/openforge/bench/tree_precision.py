"""How far a tree's gradient and log-probabilities are from the truth in float32 and bfloat16, beside those of separate sequences.

The truth is transformers' own model in float64, one sequence at a time. Separate sequences in the lower precision differ from it by
rounding alone: that is the noise that any implementation has. The tree is what the training engine computes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, MiniMaxM2Config, PretrainedConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from openforge.bench.float64 import to_float64
from openforge.bench.frame import BenchResult, at_most
from openforge.bench.model import model_folder
from openforge.bench.rollouts import Rollouts, Shape
from openforge.bench.routing import Routing, of_tree
from openforge.bench.steps import gradient, settings
from openforge.engines.training import TrainEngine
from openforge.rl.losses import LOSSES

SIZE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
    "initializer_range": 0.06,  # so that attention is far from uniform
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "head_dim": 32}
ARCHITECTURES: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**SIZE),
    "qwen2": lambda: Qwen2Config(**SIZE),
    "qwen3": lambda: Qwen3Config(**SIZE, head_dim=32),
    "qwen3_moe": lambda: Qwen3MoeConfig(**SIZE, **EXPERTS, num_experts=8, moe_intermediate_size=64),
    "minimax_m2": lambda: MiniMaxM2Config(**SIZE, **EXPERTS, num_local_experts=8),
}
DTYPES: tuple[Literal["float32", "bfloat16"], ...] = ("float32", "bfloat16")
WHAT = ("gradient", "logprob")
SHAPE = Shape("precision", ((1, 96), (3, 48), (4, 96)))


@dataclass(frozen=True, slots=True)
class Outcome:
    logprobs: Tensor
    """float64 [C]"""
    gradient: Mapping[str, Tensor]
    """float64, by parameter."""

    def error(self, truth: Outcome) -> tuple[float, float]:
        """Of the gradient, in the Euclidean norm and relative; of the log-probabilities, the largest in nats."""
        off = sum(float((self.gradient[name] - g).square().sum()) for name, g in truth.gradient.items())
        norm = sum(float(g.square().sum()) for g in truth.gradient.values())
        return (off / norm) ** 0.5, float((self.logprobs - truth.logprobs).abs().max())


def run(model: Path | None, repeats: int = 1, *, shape: Shape = SHAPE, names: Sequence[str] = tuple(ARCHITECTURES)) -> BenchResult:
    """Measure small random models of every architecture, or the model folder `model` alone. There is nothing to repeat."""
    rows = []
    for name in names if model is None else [model.name]:
        with model_folder(model, ARCHITECTURES.get(name, LlamaConfig)()) as folder:
            rows += _compare(name, folder, shape)
    bars = [at_most(f"{what}_over_rows", max(row[f"tree {what}"] / row[f"rows {what}"] for row in rows), 1.5) for what in WHAT]
    return BenchResult("tree-precision", rows, bars)


def _compare(name: str, folder: Path, shape: Shape) -> list[dict[str, Any]]:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rollouts = Rollouts.random(shape, model.config.vocab_size)
    with Routing() as routing:
        truth = separate(to_float64(copy.deepcopy(model)), rollouts, "float64")
    layers = len(routing.made) // len(rollouts.sequences)
    choices = [routing.made[i * layers : (i + 1) * layers] for i in range(len(rollouts.sequences))]
    rows = []
    for dtype in DTYPES:
        with Routing(routing.made):
            alone = separate(model, rollouts, dtype)
        tree = whole(folder, rollouts, dtype, choices)
        errors = {"tree": tree.error(truth), "rows": alone.error(truth), "tree to rows": tree.error(alone)}
        row: dict[str, Any] = {"architecture": name, "dtype": dtype}
        for index, what in enumerate(WHAT):
            row |= {f"{which} {what}": error[index] for which, error in errors.items()}
        rows.append(row)
    return rows


def separate(model: Any, rollouts: Rollouts, dtype: str) -> Outcome:
    """One sequence at a time by transformers and torch alone; in bfloat16 under autocast, with the head in float32."""
    model.zero_grad()
    logprobs = []
    for tree, sequence in zip(rollouts.rows(), rollouts.sequences, strict=True):
        ids = torch.from_numpy(sequence).long()
        at, targets = torch.from_numpy(tree.at).long(), torch.from_numpy(tree.targets).long()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            hidden = model.base_model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        logits = hidden[at].to(model.lm_head.weight.dtype) @ model.lm_head.weight.T
        logprob = logits.log_softmax(-1)[torch.arange(len(at)), targets]
        behaviour, advantages, weights = (torch.from_numpy(array) for array in (tree.logprobs, tree.advantages, tree.weights))
        (LOSSES["cispo"](logprob, behaviour, advantages, clip_high=4.0) * weights).sum().backward()  # type: ignore[no-untyped-call]
        logprobs.append(logprob.detach().double())
    return Outcome(torch.cat(logprobs), {name: p.grad.double() for name, p in model.named_parameters()})


def whole(folder: Path, rollouts: Rollouts, dtype: Literal["float32", "bfloat16"], choices: Sequence[Sequence[Tensor]]) -> Outcome:
    """The tree, by the training engine; its routers make the choices of the sequences."""
    engine = TrainEngine(folder, settings(len(rollouts.sequences) * rollouts.shape.path, dtype))
    [tree] = rollouts.tree()
    with Routing(of_tree(tree, choices)):
        of_rollouts = engine.logprobs(tree)
    with Routing(of_tree(tree, choices)):
        engine.step([tree])
    logprobs = np.concatenate([of_rollouts[rollout] for rollout in rollouts.advantages])
    return Outcome(torch.from_numpy(logprobs).double(), {name: g.double() for name, g in gradient(engine).items()})
