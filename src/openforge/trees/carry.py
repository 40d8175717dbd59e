"""Keys and values carried from a piece of a forest to those that hang on it, and their gradients back.

Invariant: gradients over all pieces sum to those of the whole forest, and no position is computed twice. A piece's backward pass comes
after those of all its descendants, which have by then summed up what they owe to its keys and values; its graph, keys and values are
freed with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from openforge.trees.partition import Piece


class Memory:
    """What one piece's attention layers read of its ancestors, and keep for its descendants."""

    def __init__(self, carried: Sequence[tuple[Memory, int]] = (), *, keep: bool = False) -> None:
        """`carried`: an ancestor's memory and how many of its leading positions, from position 0 down. `keep`: it has descendants."""
        self._carried = carried
        self._keep = keep
        self._kept: dict[int, tuple[_Kept, _Kept]] = {}

    def exchange(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's keys and values [1, K, M, D]: the carried ones, and behind them the piece's own `key` and `value` [1, K, N, D].

        Activation checkpointing calls this once more in the backward pass: what was kept first stays.
        """
        if self._keep and layer not in self._kept:
            self._kept[layer] = (_Kept(key), _Kept(value))
        if not self._carried:
            return key, value
        carried = [(memory._kept[layer], length) for memory, length in self._carried]
        return _joined(key, [(keys, length) for (keys, _), length in carried]), _joined(
            value, [(values, length) for (_, values), length in carried]
        )

    def backward(self, loss: Tensor | None) -> None:
        """The piece's backward pass, from its loss and from what its descendants owe to its keys and values; then forget them."""
        tensors: list[Tensor] = [] if loss is None else [loss]
        gradients: list[Tensor | None] = [None] * len(tensors)
        for kept in itertools.chain.from_iterable(self._kept.values()):
            if kept.gradient is not None:
                tensors.append(kept.tensor)
                gradients.append(kept.gradient.to(kept.tensor.dtype))
        if tensors:
            torch.autograd.backward(tensors, gradients)
        self._kept.clear()


class _Kept:
    """Keys or values [1, K, N, D] in a piece's graph, and the gradient that its descendants have given them so far.

    They can be many, so it is summed in float32 at least.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.gradient: Tensor | None = None

    def add(self, gradient: Tensor) -> None:
        """`gradient` is that of the leading positions."""
        if self.gradient is None:
            self.gradient = torch.zeros_like(self.tensor, dtype=torch.promote_types(self.tensor.dtype, torch.float32))
        self.gradient[:, :, : gradient.shape[2]] += gradient


def _joined(own: Tensor, carried: list[tuple[_Kept, int]]) -> Tensor:
    joined: Tensor = _Join.apply(own, carried)  # type: ignore[no-untyped-call]
    return joined


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, carried: list[tuple[_Kept, int]]) -> Tensor:
        ctx.carried = carried
        return torch.cat([*(kept.tensor[:, :, :length] for kept, length in carried), own], 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        rest = grads[0]
        for kept, length in ctx.carried:
            kept.add(rest[:, :, :length])
            rest = rest[:, :, length:]
        return rest, None


def walk(pieces: Sequence[Piece], evaluate: Callable[[Piece, Memory], Tensor | None]) -> None:
    """Evaluate all pieces depth first and, where gradients are enabled, add their losses' gradients to the parameters'.

    `evaluate` runs the model on a piece with its memory and returns the piece's loss, None if it has none.
    """
    parents = {piece.parent for piece in pieces}
    path: list[tuple[int, Memory, Tensor | None]] = []

    def finish() -> None:
        _, memory, loss = path.pop()
        if torch.is_grad_enabled():
            memory.backward(loss)

    for index, piece in enumerate(pieces):
        while path and path[-1][0] != piece.parent:
            finish()
        memories = {ancestor: memory for ancestor, memory, _ in path}
        memory = Memory([(memories[ancestor], length) for ancestor, length in piece.carried], keep=index in parents)
        path.append((index, memory, evaluate(piece, memory)))
    while path:
        finish()
