"""The language-model head in float32, where there is a loss and nowhere else.

Invariant: memory beyond hidden states and the head's weight is O(CHUNK × vocabulary): logits live for one chunk, forward and backward
(recomputed there). Each distinct position is projected once, however many targets it has.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from openforge.types import UserError

CHUNK = 256


def token_logprobs(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, at: Tensor, targets: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probabilities under the distribution softmax(logits / temperature).

    hidden [N, width], weight [V, width], bias [V]; at and targets int64 [C]. Returns float32 [C] (float64 for a float64 head):
    the log-probability of `targets[c]` at position `at[c]`, and the entropy (nats) at `at[c]`, which carries no gradient.
    """
    positions, index = torch.unique(at, return_inverse=True)
    order = torch.argsort(index, stable=True)
    rows = hidden.index_select(0, positions).to(weight.dtype)
    logprob, entropy = _Head.apply(rows, weight, bias, index[order], targets[order], temperature)  # type: ignore[no-untyped-call]
    restored = torch.empty_like(order)
    restored[order] = torch.arange(len(order), device=order.device)
    return logprob[restored], entropy[index]


class _Head(torch.autograd.Function):
    """`index` is sorted, so that the contributions of a chunk of rows are contiguous. `rows` are divided by the temperature, not logits:
    every pass over an array as wide as the vocabulary counts."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, index: Tensor, targets: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        rows = rows / temperature
        bias = None if bias is None else bias / temperature
        logprob, entropy = rows.new_empty(len(index)), rows.new_empty(len(rows))
        bounds = _bounds(index, len(rows))
        for chunk, (low, high) in enumerate(bounds):
            span = slice(chunk * CHUNK, min((chunk + 1) * CHUNK, len(rows)))
            logits = torch.nn.functional.linear(rows[span], weight, bias)
            logprobs = torch.log_softmax(logits, -1)
            logprob[low:high] = logprobs[index[low:high] - span.start, targets[low:high]]
            entropy[span] = -torch.einsum("pv,pv->p", torch.exp(logprobs, out=logits), logprobs)
        ctx.save_for_backward(rows, weight, bias, index, targets)
        ctx.temperature, ctx.bounds = temperature, bounds
        ctx.mark_non_differentiable(entropy)
        return logprob, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, bias, index, targets = ctx.saved_tensors
        grad = grads[0]
        total = torch.zeros_like(rows[:, 0]).index_add_(0, index, grad)
        d_rows = torch.empty_like(rows)
        d_weight = torch.zeros_like(weight)
        d_bias = None if bias is None else torch.zeros_like(bias)
        for chunk, (low, high) in enumerate(ctx.bounds):
            span = slice(chunk * CHUNK, min((chunk + 1) * CHUNK, len(rows)))
            d_logits = torch.softmax(torch.nn.functional.linear(rows[span], weight, bias), -1)
            d_logits.mul_(-total[span].unsqueeze(-1))
            # flat, because adding along one dimension is deterministic where several contributions share position and target
            d_logits.view(-1).index_add_(0, (index[low:high] - span.start) * len(weight) + targets[low:high], grad[low:high])
            d_rows[span] = d_logits @ weight
            d_weight.addmm_(d_logits.t(), rows[span])
            if d_bias is not None:
                d_bias += d_logits.sum(0)
        return d_rows / ctx.temperature, d_weight, None if d_bias is None else d_bias / ctx.temperature, None, None, None


def _bounds(index: Tensor, rows: int) -> list[tuple[int, int]]:
    """Per chunk of rows, the half-open range of contributions that sit there."""
    edges = torch.arange(0, rows + CHUNK, CHUNK, device=index.device)
    cuts: list[int] = torch.searchsorted(index, edges).tolist()
    return list(itertools.pairwise(cuts))


def check_head(config: PretrainedConfig) -> None:
    """Raise `UserError` for a model that does more than a linear map between hidden states and logits."""
    for name in ("final_logit_softcapping", "logits_scaling", "logit_scale"):
        if getattr(config, name, None) not in (None, 1, 1.0):
            raise UserError(f"{config.model_type} rescales its logits ({name}): training supports a plain linear head only")
