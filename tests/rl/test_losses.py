from __future__ import annotations

import math

import pytest
import torch

from openforge.rl.losses import LOSSES, policy_metrics

LOGPROB = [-0.1, -2.0, -1.0, -0.5, -3.0]
BEHAVIOUR = [-2.5, -2.0, -0.2, -0.6, -0.1]
ADVANTAGE = [1.0, -1.0, 0.5, -2.0, 3.0]
CLIP_HIGH = 0.5


def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logprob = torch.tensor(LOGPROB, dtype=torch.float64, requires_grad=True)
    return logprob, torch.tensor(BEHAVIOUR, dtype=torch.float64), torch.tensor(ADVANTAGE, dtype=torch.float64)


def test_cispo_gradient_is_the_clipped_weight_times_the_advantage() -> None:
    """MiniMax-M1, arXiv 2506.13585, eq. 4-5, written out by hand; no token's gradient is dropped, and none is clipped from below."""
    logprob, behaviour, advantage = tensors()
    LOSSES["cispo"](logprob, behaviour, advantage, clip_high=CLIP_HIGH).sum().backward()
    by_hand = [-min(math.exp(p - b), 1 + CLIP_HIGH) * a for p, b, a in zip(LOGPROB, BEHAVIOUR, ADVANTAGE, strict=True)]
    assert logprob.grad is not None
    assert logprob.grad.tolist() == pytest.approx(by_hand, rel=1e-12)
    assert all(g != 0 for g in by_hand)


def test_reinforce_and_nll_gradients() -> None:
    for name, expected in (("reinforce", [-a for a in ADVANTAGE]), ("nll", [-1.0] * 5)):
        logprob, behaviour, advantage = tensors()
        LOSSES[name](logprob, behaviour, advantage, clip_high=CLIP_HIGH).sum().backward()
        assert logprob.grad is not None
        assert logprob.grad.tolist() == expected


def test_on_policy_cispo_is_reinforce() -> None:
    logprob, _, advantage = tensors()
    pair = [LOSSES[name](logprob, logprob.detach(), advantage, clip_high=CLIP_HIGH) for name in ("cispo", "reinforce")]
    assert pair[0].tolist() == pair[1].tolist()


def test_metrics_are_means_over_contributions() -> None:
    logprob, behaviour, _ = tensors()
    ratios = [math.exp(p - b) for p, b in zip(LOGPROB, BEHAVIOUR, strict=True)]
    metrics = {name: float(value) for name, value in policy_metrics(logprob, behaviour, CLIP_HIGH).items()}
    assert metrics == pytest.approx(
        {
            "ratio_mean": sum(ratios) / len(ratios),
            "ratio_max": max(ratios),
            "clip_fraction": sum(r > 1 + CLIP_HIGH for r in ratios) / len(ratios),
            "kl": sum(r - 1 - math.log(r) for r in ratios) / len(ratios),
        }
    )
