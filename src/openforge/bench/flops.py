"""Floating-point operations of one training step, counted exactly.

Invariant: a multiplication and an addition are two operations; what is not a matrix product counts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedModel

from openforge.trees.cost import Cost, attention_width
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
    """Of forward and backward: as `Cost` counts them, but an operation of attention is one operation, however slow."""
    cost = Cost.of(model)
    pair = 14 * model.config.num_hidden_layers * attention_width(model.config)  # 2 products forward and 5 backward
    return float(cost.position * work.positions + pair * work.pairs + cost.head_row * work.head_rows)
