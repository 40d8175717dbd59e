"""Attention over the arena, behind transformers' attention interface: the model's own code calls it, and nothing in the model changes.

A step is one flat row of tokens: those that decode (one a request) first, then chunks of prompts. The model is called without cache and
without mask; this function writes the step's keys and values into the arena and attends there.

Invariant: a token sees exactly its request's own tokens up to itself. Parts of a context that lie in different places (a prefix shared by
several requests, a request's own region) are attended one by one and merged by their log-sum-exp, which is exact (Milakov and
Gimelshein 2018; Dao et al. 2022, section 3.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from openforge.engines.rollout.kv import Arena

NAME = "openforge_rollout"


@dataclass(slots=True)
class Rows:
    """Decoding requests whose regions are equally large and lie side by side, so that one batched call serves them.

    Tokens `begin` to `end - 1` of the step. `count` regions of `stride` rows from arena row `start` on; `pick` says which of them belong
    to the tokens when some are someone else's. `lengths` [count]: tokens in each, the new one included; `longest` is their maximum.
    """

    begin: int
    end: int
    start: int
    stride: int
    count: int
    pick: Tensor | None
    lengths: Tensor
    longest: int
    masks: dict[int | None, Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive [count, 1, 1, longest]."""
        if window not in self.masks:
            at = torch.arange(self.longest, device=self.lengths.device)
            length = self.lengths.unsqueeze(1)
            seen = (at < length) & (at >= length - window) if window else at < length
            mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
            self.masks[window] = mask[:, None, None]
        return self.masks[window]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `begin` to `end - 1` of the step continue a region at row `start` that holds `done` tokens; `prefix` is (row, length)."""

    begin: int
    end: int
    start: int
    done: int
    prefix: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Shared:
    """A prefix at arena rows `start` to `start + length - 1` that the decoding tokens `members` (indices into the step) see in full."""

    members: Tensor
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass of N tokens: `slots` int64 [N] are the arena rows that receive their keys and values."""

    arena: Arena
    ids: Tensor
    positions: Tensor
    slots: Tensor
    rows: list[Rows]
    chunks: list[Chunk]
    shared: list[Shared]


@dataclass(slots=True)
class Probe:
    """In place of a step: collects each layer's (kv_heads, key_dim, value_dim), and whether some layer has a sliding window."""

    shapes: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    windowed: bool = False


def register() -> None:
    AttentionInterface.register(NAME, attend)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    rollout_step: Step | Probe,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer over the step's N tokens: [1, N, heads, value_dim].

    `query` [1, heads, N, key_dim], `key` [1, kv_heads, N, key_dim], `value` [1, kv_heads, N, value_dim].
    """
    layer = module.layer_idx
    assert isinstance(layer, int)
    _, heads, count, _ = query.shape
    _, kv_heads, _, key_dim = key.shape
    value_dim = value.shape[-1]
    if isinstance(rollout_step, Probe):
        for name in ("s_aux", "position_bias"):
            if others.get(name) is not None:
                raise NotImplementedError(f"attention with {name}")
        rollout_step.shapes[layer] = (kv_heads, key_dim, value_dim)
        rollout_step.windowed |= sliding_window is not None
        return query.new_zeros(1, count, heads, value_dim), None

    step = rollout_step
    keys, values = step.arena.keys[layer], step.arena.values[layer]
    keys.index_copy_(0, step.slots, key[0].transpose(0, 1).reshape(count, -1))
    values.index_copy_(0, step.slots, value[0].transpose(0, 1).reshape(count, -1))
    queries = query[0].transpose(0, 1)
    scale = scaling if scaling is not None else key_dim**-0.5

    def span(start: int, length: int) -> tuple[Tensor, Tensor]:
        k = keys[start : start + length].view(1, length, kv_heads, key_dim).transpose(1, 2)
        v = values[start : start + length].view(1, length, kv_heads, value_dim).transpose(1, 2)
        return k, v

    decoding = step.rows[-1].end if step.rows else 0
    outs: list[Tensor] = []
    sums: list[Tensor] = []
    for rows in step.rows:
        q = queries[rows.begin : rows.end].reshape(-1, kv_heads, heads // kv_heads, key_dim)
        if rows.pick is not None:
            q = q.new_zeros(rows.count, *q.shape[1:]).index_copy_(0, rows.pick, q)
        shape = (rows.count, kv_heads, rows.longest)
        k, v = (
            x.as_strided((*shape, dim), (rows.stride * kv_heads * dim, dim, kv_heads * dim, 1), rows.start * kv_heads * dim)
            for x, dim in ((keys, key_dim), (values, value_dim))
        )
        out, lse = _scaled_dot_product(q, k, v, scale, rows.mask(sliding_window, q.dtype), softcap=softcap)
        if rows.pick is not None:
            out, lse = out.index_select(0, rows.pick), lse.index_select(0, rows.pick)
        outs.append(out)
        sums.append(lse)
    pieces: list[Tensor] = []
    if outs:
        out, lse = (outs[0], sums[0]) if len(outs) == 1 else (torch.cat(outs), torch.cat(sums))
        for shared in step.shared:
            q = queries.index_select(0, shared.members).view(-1, kv_heads, heads // kv_heads, key_dim)
            q = q.transpose(0, 1).reshape(1, kv_heads, -1, key_dim)
            far, far_lse = _scaled_dot_product(q, *span(shared.start, shared.length), scale, softcap=softcap)
            far = far.view(kv_heads, len(shared.members), -1, value_dim).transpose(0, 1)
            far_lse = far_lse.view(kv_heads, len(shared.members), -1).transpose(0, 1)
            near, near_lse = out.index_select(0, shared.members), lse.index_select(0, shared.members)
            out.index_copy_(0, shared.members, _merge([(near, near_lse), (far, far_lse)]))
        pieces.append(out.reshape(decoding, heads, value_dim))
    for chunk in step.chunks:
        q = query[:, :, chunk.begin : chunk.end]
        length = chunk.end - chunk.begin
        if sliding_window is not None:
            at = torch.arange(chunk.done + length, device=q.device)
            distance = at[chunk.done :, None] - at
            seen = (distance >= 0) & (distance < sliding_window)
            mask = torch.zeros(seen.shape, dtype=q.dtype, device=q.device).masked_fill_(~seen, float("-inf"))
            out, _ = _scaled_dot_product(q, *span(chunk.start, chunk.done + length), scale, mask[None, None], softcap=softcap)
        else:
            parts = [_scaled_dot_product(q, *span(chunk.start + chunk.done, length), scale, causal=True, softcap=softcap)]
            if chunk.done:
                parts.append(_scaled_dot_product(q, *span(chunk.start, chunk.done), scale, softcap=softcap))
            if chunk.prefix:
                parts.append(_scaled_dot_product(q, *span(*chunk.prefix), scale, softcap=softcap))
            out = _merge(parts)
        pieces.append(out[0].transpose(0, 1))
    return (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).unsqueeze(0), None


def _merge(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The attention over the union of disjoint parts, from each part's output [..., value_dim] and log-sum-exp [...]."""
    if len(parts) == 1:
        return parts[0][0]
    total = parts[0][1]
    for _, lse in parts[1:]:
        total = torch.logaddexp(total, lse)
    merged = parts[0][0] * torch.exp(parts[0][1] - total).unsqueeze(-1)
    for out, lse in parts[1:]:
        merged = merged + out * torch.exp(lse - total).unsqueeze(-1)
    return merged.to(parts[0][0].dtype)


def _scaled_dot_product(
    q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None, *, causal: bool = False, softcap: float | None = None
) -> tuple[Tensor, Tensor]:
    """Output [B, H, n, value_dim] and log-sum-exp float32 [B, H, n].

    `q` [B, H, n, D], `k` [B, G, m, D], `v` [B, G, m, value_dim], G dividing H; `mask` is additive.
    """
    if q.device.type == "cpu" and softcap is None and k.shape[-1] == v.shape[-1]:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        return out, lse
    batch, heads, count, dim = q.shape
    groups = k.shape[1]
    scores = torch.matmul(q.reshape(batch, groups, -1, dim).float() * scale, k.float().transpose(-1, -2)).view(batch, heads, count, -1)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    if causal:
        scores.masked_fill_(torch.ones(count, count, dtype=torch.bool, device=q.device).triu_(1), float("-inf"))
    lse = scores.logsumexp(-1)
    weights = torch.exp(scores - lse.unsqueeze(-1)).view(batch, groups, -1, scores.shape[-1])
    return torch.matmul(weights, v.float()).view(batch, heads, count, -1).to(q.dtype), lse
