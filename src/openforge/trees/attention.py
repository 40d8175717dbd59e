"""Exact attention over a token tree, as an attention function of transformers (`BACKEND`).

Invariant: what a model asks for beyond plain causal attention is refused by name, never ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface

from openforge.trees.backends.base import Attend
from openforge.types import UserError

BACKEND = "openforge_tree"
_NOT_PLAIN = ("sliding_window", "s_aux", "softcap", "position_bias", "head_mask")


class Memory(Protocol):
    """Keys and values of positions computed before, on which the roots of a tree hang."""

    def exchange(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Take a layer's own keys and values, [1, K, N, D] each; return carried and own ones, [1, K, carried + N, D] each."""


@dataclass(frozen=True, slots=True)
class TreeContext:
    """What a forward pass hands, as the keyword `tree`, through the model to its attention layers."""

    attend: Attend
    memory: Memory | None


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    tree: TreeContext | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention function in transformers' interface. query [1, H, N, D], key and value [1, K, N, D] → [1, N, H, D]."""
    for name in _NOT_PLAIN:
        if kwargs.get(name) is not None:
            raise UserError(f"{type(module).__name__} uses {name}: tree training supports plain causal attention only")
    assert tree is not None, "the tree attention was called without a tree"
    assert attention_mask is None
    assert dropout == 0.0
    # rotary positions leave queries and keys in float32 under autocast
    query, key = query.to(value.dtype), key.to(value.dtype)
    if tree.memory is not None:
        key, value = tree.memory.exchange(int(module.layer_idx), key, value)  # type: ignore[arg-type]
    return tree.attend(query, key, value, query.shape[-1] ** -0.5 if scaling is None else scaling), None


AttentionInterface.register(BACKEND, tree_attention)
