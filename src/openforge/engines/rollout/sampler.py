"""Draws the next token of every row of a batch, and says how likely the draw was.

Invariant: the log-probability returned is that of the distribution the token was drawn from, after temperature and truncation,
renormalised; and a row's draw depends on its own logits, settings and uniform number alone, never on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from openforge.types import Sampling

_BUCKET = 256
_CANDIDATES = 512
_BELOW_ONE = 1.0 - 2.0**-40


@torch.inference_mode()
def sample(logits: Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> tuple[list[int], list[float]]:
    """Token ids and log-probabilities for `logits` float32 [rows, vocabulary]; `logits` is overwritten.

    `uniforms` holds one number in [0, 1) a row: the draw inverts the distribution function at it. Top-k comes first, then top-p over what
    top-k left (the smallest set of most likely tokens with at least that mass: Holtzman et al. 2020, section 3.1), then min-p relative to
    the most likely token (Nguyen et al. 2025, section 3). Raises FloatingPointError when the logits are not finite.
    """
    if any(s.temperature not in (0, 1) for s in samplings):
        logits.div_(torch.tensor([[s.temperature or 1.0] for s in samplings], device=logits.device))
    mass = logits.sub_(logits.amax(-1, keepdim=True)).exp()
    if missing := -mass.shape[1] % _BUCKET:
        mass = torch.nn.functional.pad(mass, (0, missing))
    buckets = mass.view(len(mass), -1, _BUCKET)
    cumulative = buckets.sum(-1).double().cumsum(-1)
    total = cumulative[:, -1:]
    if not total.isfinite().all():
        raise FloatingPointError("the model's logits are not finite: its weights have diverged or are broken")
    target = torch.tensor(uniforms, dtype=torch.float64, device=logits.device).unsqueeze(1) * _BELOW_ONE

    bucket = torch.searchsorted(cumulative, target * total, right=True).clamp_(max=cumulative.shape[1] - 1)
    before = torch.where(bucket > 0, cumulative.gather(1, (bucket - 1).clamp_(min=0)), 0.0)
    inside = buckets.gather(1, bucket.unsqueeze(-1).expand(-1, -1, _BUCKET)).squeeze(1).double().cumsum(-1)
    # The bucket's float32 sum and its float64 running sum differ in the last bits; the draw must stay inside the bucket.
    rest = torch.minimum(target * total - before, inside[:, -1:] * _BELOW_ONE)
    ids = bucket * _BUCKET + torch.searchsorted(inside, rest, right=True)

    greedy = [row for row, s in enumerate(samplings) if s.temperature == 0]
    if greedy:
        ids[greedy] = logits[greedy].argmax(-1, keepdim=True)
    logprobs = logits.gather(1, ids).double() - total.log()

    cut = [row for row, s in enumerate(samplings) if s.temperature > 0 and (s.top_k > 0 or s.top_p < 1 or s.min_p > 0)]
    if cut:
        ids[cut], logprobs[cut] = _truncated(logits[cut], total[cut], [samplings[row] for row in cut], target[cut])
    return ids.squeeze(1).tolist(), logprobs.squeeze(1).tolist()


def _truncated(logits: Tensor, total: Tensor, samplings: Sequence[Sampling], target: Tensor) -> tuple[Tensor, Tensor]:
    vocabulary = logits.shape[1]

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device).unsqueeze(1)

    top_k = column([s.top_k if s.top_k > 0 else vocabulary for s in samplings])
    top_p = column([s.top_p for s in samplings])
    min_p = column([s.min_p for s in samplings])
    # Sorting a whole vocabulary is slow and nearly always needless: try the most likely few, and look whether the cut lies among them.
    for candidates in (min(_CANDIDATES, vocabulary), vocabulary):
        values, order = logits.topk(candidates, dim=-1)
        mass = torch.exp(values - values[:, :1]).double()
        rank = torch.arange(candidates, device=logits.device)
        by_rank = rank < top_k
        cumulative = (mass * by_rank).cumsum(-1)
        left = torch.where(top_k < candidates, cumulative[:, -1:], total)
        keep = by_rank & ((cumulative - mass < top_p * left) | (top_p >= 1)) & (mass >= min_p * mass[:, :1])
        keep[:, 0] = True
        if candidates == vocabulary or not keep[:, -1].any():
            break
    count = keep.sum(-1, keepdim=True)
    kept = cumulative.gather(1, count - 1)
    at = torch.searchsorted(cumulative, target * kept, right=True).minimum(count - 1)
    return order.gather(1, at), mass.gather(1, at).log() - kept.log()
