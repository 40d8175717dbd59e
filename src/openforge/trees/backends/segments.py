"""Tree attention by scaled-dot-product attention over dense pieces: exact, on every device.

Invariant: each (query, key) pair that see each other is computed in exactly one call, and a query's partial results are merged at most
once. Segments come depth first, so a stack holds the keys of the current path: what a segment sees above itself is the lower part of
the stack, one contiguous piece. Small segments that follow one another are computed together under a mask, so that there are
O(positions) / `SMALL` calls, whatever the tree's shape.

A query's results over the stack and over its own group are merged by their log-sum-exp, and the backward of each part uses the merged
output and log-sum-exp, as blockwise attention does (Liu et al. 2023, arXiv 2310.01889; Dao et al. 2022, arXiv 2205.14135, appendix B).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from openforge.trees.backends.base import Attend
from openforge.trees.layout import Layout

SMALL = 128
"""Segments are grouped up to this many positions: below it, a call costs more than the pairs that the mask throws away."""
_SHALLOW = 8
"""Or up to this part of the path above: every group reads the whole path once, and adds to the gradient of it."""


@dataclass(frozen=True, slots=True)
class _Span:
    """The positions `start` … `stop` - 1 lie on the current path from `depth` on."""

    start: int
    stop: int
    depth: int


@dataclass(frozen=True, slots=True)
class _Group:
    """Consecutive segments that all see the path's first `depth` positions, and beyond them only each other."""

    start: int
    stop: int
    depth: int
    mask: Tensor | None
    """bool [n, n]: who sees whom in the group; None if it is one segment, where earlier means seen."""
    path: tuple[_Span, ...]
    """Those of its segments that later groups see."""


@dataclass(frozen=True, slots=True)
class _Plan:
    carried: int
    groups: tuple[_Group, ...]
    height: int
    """Positions that the stack must hold."""


def segment_backend(layout: Layout, device: torch.device) -> Attend:
    """A `Backend` for every device; on CPU with torch's fused kernel."""
    groups = tuple(_groups(layout, device))
    plan = _Plan(layout.carried, groups, max((group.depth for group in groups), default=0))

    def attend(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        output: Tensor = _SegmentAttention.apply(query, key, value, plan, scale)  # type: ignore[no-untyped-call]
        return output

    return attend


def _groups(layout: Layout, device: torch.device) -> Iterator[_Group]:
    starts, depths = layout.starts.tolist(), layout.depths.tolist()
    first, last = (array[layout.carried :] for array in layout.queries())
    ends = last[layout.starts[:-1]].tolist()
    begin = 0
    while begin < len(depths):
        limit = max(SMALL, depths[begin] // _SHALLOW)
        end = begin + 1
        while end < len(depths) and depths[end] >= depths[begin] and starts[end + 1] - starts[begin] <= limit:
            end += 1
        span = slice(starts[begin], starts[end])
        rows = np.arange(span.start, span.stop)[:, None]
        mask = None if end == begin + 1 else torch.from_numpy((first[span] <= rows) & (rows < last[span])).to(device)
        path = tuple(_Span(starts[s], starts[s + 1], depths[s]) for s in range(begin, end) if ends[s] > span.stop)
        yield _Group(span.start, span.stop, depths[begin], mask, path)
        begin = end


class _Stack:
    """Rows of the current path, from position 0 down: [1, K, height, D], cut out of `source` [1, K, M, D]."""

    def __init__(self, source: Tensor, plan: _Plan) -> None:
        self._source, self._carried = source, plan.carried
        self.rows = source.new_empty(1, source.shape[1], plan.height, source.shape[3])
        self.rows[:, :, : plan.carried] = source[:, :, : plan.carried]

    def push(self, spans: tuple[_Span, ...]) -> None:
        for span in spans:
            own = slice(self._carried + span.start, self._carried + span.stop)
            self.rows[:, :, span.depth : span.depth + span.stop - span.start] = self._source[:, :, own]


class _GradientStack:
    """Gradients of the current path's rows: [1, K, height, D]; they go to `target` [1, K, M, D] as the rows leave the path."""

    def __init__(self, target: Tensor, plan: _Plan) -> None:
        self._target, self._carried = target, plan.carried
        self.rows = target.new_zeros(1, target.shape[1], plan.height, target.shape[3])
        self._spans = [_Span(-plan.carried, 0, 0)]

    def push(self, spans: tuple[_Span, ...]) -> None:
        self._spans += spans

    def cut(self, depth: int) -> None:
        """Keep the first `depth` rows."""
        while self._spans:
            span = self._spans[-1]
            kept = min(max(depth - span.depth, 0), span.stop - span.start)
            gone = slice(span.depth + kept, span.depth + span.stop - span.start)
            self._target[:, :, self._carried + span.start + kept : self._carried + span.stop] += self.rows[:, :, gone]
            self.rows[:, :, gone] = 0
            if kept:
                self._spans[-1] = _Span(span.start, span.start + kept, span.depth)
                return
            self._spans.pop()


class _SegmentAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: _Plan, scale: float) -> Tensor:
        q = _grouped(query, key)
        groups, heads, length, _ = q.shape
        out = q.new_empty(length, heads, groups, value.shape[-1]).permute(2, 1, 0, 3)
        logsumexp = torch.empty(length, heads, groups, dtype=_accumulator(q.dtype), device=q.device).permute(2, 1, 0)
        keys, values = _Stack(key, plan), _Stack(value, plan)
        for group in plan.groups:
            rows, own = slice(group.start, group.stop), slice(plan.carried + group.start, plan.carried + group.stop)
            part, part_lse = _attend(q[:, :, rows], key[:, :, own], value[:, :, own], scale, group.mask is None, group.mask)
            if group.depth:
                above = slice(0, group.depth)
                path, path_lse = _attend(q[:, :, rows], keys.rows[:, :, above], values.rows[:, :, above], scale)
                # o = σ(l₂ - l₁)·o₂ + (1 - σ)·o₁: a softmax over the union of both key sets
                part = part.lerp(path, torch.sigmoid(path_lse - part_lse).unsqueeze(-1).to(part.dtype))
                part_lse = torch.logaddexp(part_lse, path_lse)
            out[:, :, rows] = part
            logsumexp[:, :, rows] = part_lse
            keys.push(group.path)
            values.push(group.path)
        ctx.save_for_backward(query, key, value, out, logsumexp)
        ctx.plan, ctx.scale = plan, scale
        return out.permute(2, 1, 0, 3).reshape(1, length, heads * groups, value.shape[-1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, logsumexp = ctx.saved_tensors
        plan: _Plan = ctx.plan
        q = _grouped(query, key)
        groups, heads, length, _ = q.shape
        grad = grads[0].view(length, heads, groups, -1).permute(2, 1, 0, 3)
        dq = q.new_empty(length, heads, groups, q.shape[-1]).permute(2, 1, 0, 3)
        dk, dv = torch.zeros_like(key), torch.zeros_like(value)
        keys, values, key_grads, value_grads = _Stack(key, plan), _Stack(value, plan), _GradientStack(dk, plan), _GradientStack(dv, plan)
        for group in plan.groups:
            rows, own = slice(group.start, group.stop), slice(plan.carried + group.start, plan.carried + group.stop)
            part = (grad[:, :, rows], q[:, :, rows], out[:, :, rows], logsumexp[:, :, rows])
            part_q, part_k, part_v = _attend_backward(*part, key[:, :, own], value[:, :, own], ctx.scale, group.mask is None, group.mask)
            dk[0, :, own] += part_k
            dv[0, :, own] += part_v
            key_grads.cut(group.depth)
            value_grads.cut(group.depth)
            if group.depth:
                above = slice(0, group.depth)
                path_q, path_k, path_v = _attend_backward(*part, keys.rows[:, :, above], values.rows[:, :, above], ctx.scale)
                part_q += path_q
                key_grads.rows[0, :, above] += path_k
                value_grads.rows[0, :, above] += path_v
            dq[:, :, rows] = part_q
            for stack in (keys, values, key_grads, value_grads):
                stack.push(group.path)
        key_grads.cut(0)
        value_grads.cut(0)
        return dq.permute(2, 1, 0, 3).reshape(1, length, heads * groups, -1).transpose(1, 2), dk, dv, None, None


def _grouped(query: Tensor, key: Tensor) -> Tensor:
    """[1, K·G, N, D] → [G, K, N, D]: the query heads that share a key head become the batch, over which keys broadcast."""
    _, heads, length, width = query.shape
    key_heads = key.shape[1]
    return query.view(key_heads, heads // key_heads, length, width).transpose(0, 1)


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Causal: query i sees keys 0 … i. q [G, K, Q, D], k and v [1, K, M, D] → output [G, K, Q, D], log-sum-exp [G, K, Q]."""
    if _has_kernel(q, v):
        k, v = k.expand(q.shape[0], -1, -1, -1), v.expand(q.shape[0], -1, -1, -1)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, attn_mask=_additive(mask, q.dtype), scale=scale
        )
        return out, lse
    scores = _scores(q, k, scale, causal, mask)
    lse = scores.logsumexp(-1)
    return torch.matmul((scores - lse.unsqueeze(-1)).exp().to(v.dtype), v), lse


def _attend_backward(
    grad: Tensor,
    q: Tensor,
    out: Tensor,
    lse: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    causal: bool = False,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of one part under the merged output and log-sum-exp: dq [G, K, Q, D], dk and dv [K, M, D]."""
    if _has_kernel(q, v):
        k, v = k.expand(q.shape[0], -1, -1, -1), v.expand(q.shape[0], -1, -1, -1)
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, lse, 0.0, causal, attn_mask=_additive(mask, q.dtype), scale=scale
        )
        return dq, dk.sum(0), dv.sum(0)
    weights = (_scores(q, k, scale, causal, mask) - lse.unsqueeze(-1)).exp()
    delta = (grad * out).sum(-1, keepdim=True, dtype=lse.dtype)
    dscores = (weights * (torch.matmul(grad, v.transpose(-1, -2)).to(lse.dtype) - delta) * scale).to(q.dtype)
    dk = torch.matmul(dscores.transpose(-1, -2), q).sum(0)
    dv = torch.matmul(weights.to(grad.dtype).transpose(-1, -2), grad).sum(0)
    return torch.matmul(dscores, k), dk, dv


def _has_kernel(q: Tensor, v: Tensor) -> bool:
    return q.device.type == "cpu" and q.shape[-1] == v.shape[-1]


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if mask is None else torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, -torch.inf)


def _scores(q: Tensor, k: Tensor, scale: float, causal: bool, mask: Tensor | None) -> Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)).to(_accumulator(q.dtype)) * scale
    if causal:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    return scores if mask is None else scores.masked_fill(~mask, -torch.inf)
