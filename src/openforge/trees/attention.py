"""Exact attention over a token tree, as an attention backend of transformers (`BACKEND`).

Invariant: a position attends to its root path and itself, nothing else. Segments are stored depth first, so the positions that may see
a segment's keys (its own, and all its descendants') are contiguous: one call per segment, causal from its upper left corner, covers
its keys. No mask is built, no key is gathered or repeated. The partial results of a position over its ancestors are merged by their
log-sum-exp, and the backward of each part uses the merged output and log-sum-exp, as blockwise attention does
(Liu et al. 2023, arXiv 2310.01889; Dao et al. 2022, arXiv 2205.14135, appendix B).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface

from openforge.types import TokenTree, UserError

BACKEND = "openforge_segments"
_NOT_PLAIN = ("sliding_window", "s_aux", "softcap", "position_bias", "head_mask")


@dataclass(frozen=True, slots=True)
class Layout:
    """What attention needs to know of a tree: per segment (first position, one past its last, one past its last descendant's, is root)."""

    segments: tuple[tuple[int, int, int, bool], ...]

    @classmethod
    def of(cls, tree: TokenTree) -> Layout:
        ends = tree.starts[1:].copy()
        for segment in range(len(tree.parents) - 1, -1, -1):
            parent = tree.parents[segment]
            if parent >= 0:
                ends[parent] = max(ends[parent], ends[segment])
        columns = (tree.starts[:-1], tree.starts[1:], ends, tree.parents < 0)
        return cls(tuple((int(s), int(e), int(t), bool(r)) for s, e, t, r in zip(*columns, strict=True)))


def segment_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    tree: Layout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention function in transformers' interface. query [1, H, N, D], key and value [1, K, N, D] → [1, N, H, D]."""
    for name in _NOT_PLAIN:
        if kwargs.get(name) is not None:
            raise UserError(f"{type(module).__name__} uses {name}: tree training supports plain causal attention only")
    assert tree is not None, "the tree attention backend was called without a tree"
    assert attention_mask is None
    assert dropout == 0.0
    dtype = value.dtype
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    output = _SegmentAttention.apply(query.to(dtype), key.to(dtype), value, tree, scale)  # type: ignore[no-untyped-call]
    return output, None


AttentionInterface.register(BACKEND, segment_attention)


class _SegmentAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, tree: Layout, scale: float) -> Tensor:
        q, k, v = _grouped(query, key), key, value
        groups, heads, length, _ = q.shape
        out = q.new_empty(length, heads, groups, v.shape[-1]).permute(2, 1, 0, 3)
        logsumexp = torch.empty(length, heads, groups, dtype=_accumulator(q.dtype), device=q.device).permute(2, 1, 0)
        for start, end, last, is_root in tree.segments:
            part, part_lse = _attend(q[:, :, start:last], k[:, :, start:end], v[:, :, start:end], scale)
            span = slice(start, last)
            if is_root:
                out[:, :, span] = part
                logsumexp[:, :, span] = part_lse
            else:
                # o = σ(l₂ - l₁)·o₂ + (1 - σ)·o₁: a softmax over the union of both key sets
                share = torch.sigmoid(part_lse - logsumexp[:, :, span]).unsqueeze(-1).to(out.dtype)
                out[:, :, span].lerp_(part, share)
                logsumexp[:, :, span] = torch.logaddexp(logsumexp[:, :, span], part_lse)
        ctx.save_for_backward(query, key, value, out, logsumexp)
        ctx.tree, ctx.scale = tree, scale
        return out.permute(2, 1, 0, 3).reshape(1, length, heads * groups, v.shape[-1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, logsumexp = ctx.saved_tensors
        q = _grouped(query, key)
        groups, heads, length, _ = q.shape
        grad = grads[0].view(length, heads, groups, -1).permute(2, 1, 0, 3)
        dq = q.new_empty(length, heads, groups, q.shape[-1]).permute(2, 1, 0, 3)
        dk, dv = torch.empty_like(key), torch.empty_like(value)
        for start, end, last, is_root in ctx.tree.segments:
            span, keys = slice(start, last), slice(start, end)
            part_q, part_k, part_v = _attend_backward(
                grad[:, :, span], q[:, :, span], key[:, :, keys], value[:, :, keys], out[:, :, span], logsumexp[:, :, span], ctx.scale
            )
            if is_root:
                dq[:, :, span] = part_q
            else:
                dq[:, :, span] += part_q
            dk[0, :, keys] = part_k
            dv[0, :, keys] = part_v
        return dq.permute(2, 1, 0, 3).reshape(1, length, heads * groups, -1).transpose(1, 2), dk, dv, None, None


def _grouped(query: Tensor, key: Tensor) -> Tensor:
    """[1, K·G, N, D] → [G, K, N, D]: the query heads that share a key head become the batch, over which keys broadcast."""
    _, heads, length, width = query.shape
    key_heads = key.shape[1]
    return query.view(key_heads, heads // key_heads, length, width).transpose(0, 1)


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Query i sees keys 0 … i. q [G, K, Q, D], k and v [1, K, M, D], Q ≥ M → output [G, K, Q, D], log-sum-exp [G, K, Q]."""
    if _has_kernel(q, v):
        k, v = k.expand(q.shape[0], -1, -1, -1), v.expand(q.shape[0], -1, -1, -1)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=scale)
        return out, lse
    scores = _scores(q, k, scale)
    lse = scores.logsumexp(-1)
    return torch.matmul((scores - lse.unsqueeze(-1)).exp().to(v.dtype), v), lse


def _attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of one part under the merged output and log-sum-exp: dq [G, K, Q, D], dk and dv [K, M, D]."""
    if _has_kernel(q, v):
        k, v = k.expand(q.shape[0], -1, -1, -1), v.expand(q.shape[0], -1, -1, -1)
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, lse, 0.0, True, scale=scale)
        return dq, dk.sum(0), dv.sum(0)
    weights = (_scores(q, k, scale) - lse.unsqueeze(-1)).exp()
    delta = (grad * out).sum(-1, keepdim=True, dtype=lse.dtype)
    dscores = (weights * (torch.matmul(grad, v.transpose(-1, -2)).to(lse.dtype) - delta) * scale).to(q.dtype)
    dk = torch.matmul(dscores.transpose(-1, -2), q).sum(0)
    dv = torch.matmul(weights.to(grad.dtype).transpose(-1, -2), grad).sum(0)
    return torch.matmul(dscores, k), dk, dv


def _has_kernel(q: Tensor, v: Tensor) -> bool:
    return q.device.type == "cpu" and q.shape[-1] == v.shape[-1]


def _scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)).to(_accumulator(q.dtype)) * scale
    visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    return scores.masked_fill(~visible, -np.inf)
