"""Hidden states at every position of a tree, in one pass of the model's body.

Invariant: equal, in exact arithmetic, to the body run on each root-to-leaf sequence by itself.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from openforge.trees.attention import BACKEND, Memory, TreeContext
from openforge.trees.backends.base import Backend
from openforge.trees.layout import Layout
from openforge.types import IntArray, TokenTree


def forward(model: PreTrainedModel, tree: TokenTree, backend: Backend, memory: Memory | None = None) -> Tensor:
    """Final hidden states [N, width] of the causal language model's body, before its head.

    The model must have been loaded with, or set to, the attention function `attention.BACKEND`. Without a `memory`, all roots must
    have depth 0.
    """
    assert model.config._attn_implementation == BACKEND
    device = next(model.parameters()).device
    output = model.base_model(
        input_ids=torch.from_numpy(tree.tokens).long().unsqueeze(0).to(device),
        position_ids=torch.from_numpy(position_ids(tree)).long().unsqueeze(0).to(device),
        use_cache=False,
        tree=TreeContext(backend(Layout.of(tree), device), memory),
    )
    hidden: Tensor = output.last_hidden_state[0]
    return hidden


def position_ids(tree: TokenTree) -> IntArray:
    """Distance of each position from its root: int32 [N]."""
    lengths = np.diff(tree.starts)
    return np.arange(len(tree.tokens), dtype=np.int32) + np.repeat(tree.depths - tree.starts[:-1], lengths)
