"""AdamW with decay groups, and the learning-rate schedule.

Invariant: the learning rate is a pure function of the settings and the optimizer step, so that a resumed run goes on as if it had never
stopped.
"""

from __future__ import annotations

import math

import torch

from openforge.engines.training.settings import TrainSettings


def make_optimizer(model: torch.nn.Module, settings: TrainSettings) -> torch.optim.AdamW:
    """Matrices decay, vectors (norms, biases) do not."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=settings.learning_rate, betas=settings.betas, fused=True)


def learning_rate(settings: TrainSettings, step: int) -> float:
    """Of optimizer step `step`, counted from 0: linear warm-up over `warmup_steps`, then constant, linear or cosine down to 0."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    length = max(1, settings.steps - settings.warmup_steps)
    done = min(1.0, (step - settings.warmup_steps) / length)
    factor = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1.0 + math.cos(math.pi * done))}[settings.decay]
    return settings.learning_rate * factor
