"""What a step reports of its trained tokens.

Invariant: computed from all contributions of the step at once, so that neither pieces nor the order of trees nor sharing can change it
beyond rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openforge.engines.training.settings import TrainSettings
from openforge.rl.losses import LOSSES, policy_metrics
from openforge.types import TokenTree


def token_losses(tree: TokenTree, logprob: Tensor, settings: TrainSettings) -> Tensor:
    """Weighted loss of each contribution: float32 [C], on the device of `logprob`; their sum is the loss."""
    behaviour, advantage, weight = (torch.from_numpy(array).to(logprob.device) for array in (tree.logprobs, tree.advantages, tree.weights))
    return weight * LOSSES[settings.loss](logprob, behaviour, advantage, clip_high=settings.clip_high)


def token_metrics(tree: TokenTree, logprob: Tensor, entropy: Tensor, version: int, settings: TrainSettings) -> dict[str, float]:
    """`loss`, `tokens` and, if there are any, means over the contributions. `version`: of the weights that `logprob` is under."""
    metrics: dict[str, Tensor | float] = {"loss": token_losses(tree, logprob, settings).double().sum(), "tokens": float(len(logprob))}
    if len(logprob):
        behaviour = torch.from_numpy(tree.logprobs).to(logprob.device)
        metrics |= policy_metrics(logprob, behaviour, settings.clip_high) | {"entropy": entropy.mean()}
        gap = (logprob - behaviour).abs()[torch.from_numpy(tree.versions == version).to(logprob.device)]
        if len(gap):
            metrics |= {"logprob_gap": gap.mean(), "logprob_gap_max": gap.max()}
    return {name: float(value) for name, value in metrics.items()}
