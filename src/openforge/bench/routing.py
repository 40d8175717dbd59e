"""Which experts a token is sent to.

Invariant: models that are compared send every token to the same experts, for a choice that rounding turns makes a jump, not an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from openforge.trees.forward import position_ids
from openforge.trees.shape import leaves
from openforge.types import TokenTree


class Routing(TorchFunctionMode):
    """Within it, routers make the choices `given` (in order, int64 [tokens, experts a token] each), or, without, their own; `made` has
    what they chose."""

    def __init__(self, given: Iterable[Tensor] | None = None) -> None:
        super().__init__()
        self._given = None if given is None else iter(given)
        self.made: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is not torch.topk:
            return result
        values, index = result
        if self._given is not None:
            index = next(self._given)
            values = args[0].gather(-1, index)
        self.made.append(index)
        return values, index


def of_tree(tree: TokenTree, sequences: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """From the choices of each sequence, layer by layer, those of the tree whose leaves they are, in order: one [N, k] a layer."""
    leaf = leaves(tree)
    below: np.ndarray = np.repeat(np.cumsum(leaf) - leaf, np.diff(tree.starts))  # of the leaves under a position, the first
    places = list(zip(below.tolist(), position_ids(tree).tolist(), strict=True))
    return [torch.stack([sequences[sequence][layer][at] for sequence, at in places]) for layer in range(len(sequences[0]))]
