"""Token losses by name.

Invariant: a loss is a pure function of (log-probability, behaviour log-probability, advantage), element by element over contributions;
it knows nothing of trees, batches or weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor


class TokenLoss(Protocol):
    def __call__(self, logprob: Tensor, behaviour: Tensor, advantage: Tensor, *, clip_high: float) -> Tensor:
        """All float32 [C] → loss of each contribution, float32 [C]; the gradient flows through `logprob` alone."""
        ...


def cispo(logprob: Tensor, behaviour: Tensor, advantage: Tensor, *, clip_high: float) -> Tensor:
    """- sg(min(r, 1 + clip_high)) · A · log π, with r = π / π_behaviour.

    MiniMax-M1, arXiv 2506.13585, eq. 4-5: the importance weight is clipped and its gradient stopped, so that no token's gradient is
    dropped. There is no lower clip, as in the paper's experiments.
    """
    ratio = (logprob.detach() - behaviour).exp()
    return -ratio.clamp(max=1.0 + clip_high) * advantage * logprob


def reinforce(logprob: Tensor, behaviour: Tensor, advantage: Tensor, *, clip_high: float) -> Tensor:
    """- A · log π: no correction for samples of older weights (Williams 1992)."""
    return -advantage * logprob


def nll(logprob: Tensor, behaviour: Tensor, advantage: Tensor, *, clip_high: float) -> Tensor:
    """- log π: supervised fine-tuning; the advantage plays no part."""
    return -logprob


LOSSES: Mapping[str, TokenLoss] = {"cispo": cispo, "reinforce": reinforce, "nll": nll}


def policy_metrics(logprob: Tensor, behaviour: Tensor, clip_high: float) -> dict[str, Tensor]:
    """Means over at least one contribution, and `ratio_max`.

    `kl` is the unbiased, non-negative estimator r - 1 - log r with r = π / π_behaviour, whose mean over behaviour samples is
    KL(π_behaviour ‖ π) (Schulman, "Approximating KL divergence", 2020, k3).
    """
    difference = logprob.detach() - behaviour
    ratio = difference.exp()
    return {
        "ratio_mean": ratio.mean(),
        "ratio_max": ratio.max(),
        "clip_fraction": (ratio > 1.0 + clip_high).float().mean(),
        "kl": (ratio - 1.0 - difference).mean(),
    }
