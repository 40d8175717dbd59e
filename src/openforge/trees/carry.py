"""Keys and values carried from a piece of a forest to those that hang on it, and their gradients back.

Invariant: gradients over all pieces sum to those of the whole forest, and no position is computed twice. A piece's backward pass comes
after those of all its descendants, which have by then summed up what they owe to its keys and values; its graph, keys and values are
freed with it. No piece saves a copy of what it carries, so that a path's keys and values are stored once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.weak import WeakTensorKeyDictionary

from openforge.trees.partition import Piece


class Memory:
    """What one piece's attention layers read of its ancestors, and keep for its descendants."""

    def __init__(self, carried: Sequence[tuple[Memory, int]] = (), *, keep: bool = False) -> None:
        """`carried`: an ancestor's memory and how many of its leading positions, from position 0 down. `keep`: it has descendants."""
        self._carried = carried
        self._keep = keep
        self._kept: dict[int, tuple[_Kept, _Kept]] = {}
        self._joined = WeakTensorKeyDictionary()

    def exchange(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's keys and values [1, K, M, D]: the carried ones, and behind them the piece's own `key` and `value` [1, K, N, D].

        Activation checkpointing calls this once more in the backward pass: what was kept first stays.
        """
        if self._keep and layer not in self._kept:
            self._kept[layer] = (_Kept(key), _Kept(value))
        if not self._carried:
            return key, value
        kept = [(memory._kept[layer], length) for memory, length in self._carried]
        return self._join(key, [(keys, length) for (keys, _), length in kept]), self._join(value, [(v, length) for (_, v), length in kept])

    def _join(self, own: Tensor, carried: list[tuple[_Kept, int]]) -> Tensor:
        recipe = _Recipe(own, carried)
        joined: Tensor = _Join.apply(own, recipe)  # type: ignore[no-untyped-call]
        self._joined[joined] = recipe
        return joined

    def sparing(self) -> AbstractContextManager[None]:
        """A context in which the graph does not save what `exchange` returns, but how to join it again."""
        if not self._carried:
            return nullcontext()
        return saved_tensors_hooks(
            lambda tensor: self._joined.get(tensor, tensor),  # type: ignore[no-untyped-call]
            lambda saved: saved.join() if isinstance(saved, _Recipe) else saved,
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


@dataclass(frozen=True, slots=True)
class _Recipe:
    own: Tensor
    carried: list[tuple[_Kept, int]]

    def join(self) -> Tensor:
        return torch.cat([*(kept.tensor[:, :, :length] for kept, length in self.carried), self.own], 2)


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, recipe: _Recipe) -> Tensor:
        ctx.carried = recipe.carried
        return recipe.join()

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
        with memory.sparing():
            path.append((index, memory, evaluate(piece, memory)))
    while path:
        finish()
