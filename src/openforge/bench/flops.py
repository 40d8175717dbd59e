"""Floating-point operations of one training step, counted exactly.

Invariant: a multiplication and an addition are two operations; what is not a matrix product counts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from transformers import PretrainedConfig, PreTrainedModel

from openforge.trees.layout import Layout
from openforge.types import TokenTree


@dataclass(frozen=True, slots=True)
class Work:
    """What a step has to do."""

    positions: int
    pairs: int
    """(query, key) pairs that see each other."""
    head_rows: int
    """Distinct positions with a loss."""

    @classmethod
    def of(cls, tree: TokenTree) -> Work:
        return cls(len(tree.tokens), Layout.of(tree).pairs, len(np.unique(tree.at)))


def flops(model: PreTrainedModel, work: Work) -> float:
    """Of forward and backward. A matrix costs 2 a position forward and 4 backward (Kaplan et al. 2020, arXiv 2001.08361, section 2.1);
    attention has 2 products a pair forward and 5 backward, which computes the scores again (Dao et al. 2022, arXiv 2205.14135,
    appendix B); the head computes its logits again."""
    config: PretrainedConfig = model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    matrices = sum(p.numel() for name, p in model.base_model.named_parameters() if p.ndim == 2 and "embed" not in name)
    body = 6 * matrices * work.positions
    attention = 14 * config.num_hidden_layers * config.num_attention_heads * width * work.pairs
    head = 8 * config.vocab_size * config.hidden_size * work.head_rows
    return float(body + attention + head)
