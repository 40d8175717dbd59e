"""Tree attention by MagiAttention's flexible flash attention (Hopper GPUs): the layout's blocks are its slices.

Invariant: Magi aligns a causal slice at its bottom right corner. A layout's causal block, aligned at its upper left and at least as tall
as wide, is therefore a square causal slice with a full one below.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openforge.trees.backends.base import Attend
from openforge.trees.layout import Layout
from openforge.types import UserError

FULL, CAUSAL = 0, 1
"""Magi's numbers for the kinds of slices."""

Slice = tuple[int, int, int, int, int]


def magi_backend(layout: Layout, device: torch.device) -> Attend:
    """A `Backend` for NVIDIA Hopper."""
    from magi_attention.api import flex_flash_attn_func

    table = torch.tensor(slices(layout), dtype=torch.int32, device=device)
    queries, keys, kinds = table[:, 0:2].contiguous(), table[:, 2:4].contiguous(), table[:, 4].contiguous()

    def attend(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        if query.dtype not in (torch.bfloat16, torch.float16):
            raise UserError("train.attention: magi computes in bfloat16 only: set train.dtype to bfloat16, or train.attention to flex")
        q, k, v = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
        output: Tensor = flex_flash_attn_func(q, k, v, q_ranges=queries, k_ranges=keys, attn_type_map=kinds, softmax_scale=scale)[0]
        return output[None]

    return attend


def slices(layout: Layout) -> list[Slice]:
    """Disjoint slices: queries from, to, keys from, to, kind."""
    result: list[Slice] = []
    for block in layout.blocks:
        start = block.start
        if block.causal:
            start += block.last - block.first
            result.append((block.start, start, block.first, block.last, CAUSAL))
        if start < block.stop:
            result.append((start, block.stop, block.first, block.last, FULL))
    return result


def check_magi(device: torch.device) -> None:
    """`UserError` unless Magi can run here."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        raise UserError("train.attention: magi needs an NVIDIA Hopper GPU: set it to auto")
    try:
        import magi_attention  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"train.attention: magi needs the package magi_attention ({error}): install it from github.com/SandAI-org/MagiAttention"
        ) from None
