"""A forest walked in pieces gives what separate sequences give: float64 gradients, and values without gradients."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import torch
from forest_cases import Forest, float64_model, forests, random_model, trajectory
from hypothesis import given
from hypothesis import strategies as st
from test_exactness import Gradients, assert_close, gradients, row_loss, tree_loss
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from openforge.trees.build import build
from openforge.trees.carry import Memory, walk
from openforge.trees.partition import Piece, partition
from openforge.types import TokenTree


@contextmanager
def checkpointed(model: PreTrainedModel, on: bool) -> Iterator[None]:
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers:
        layer.training = layer.gradient_checkpointing = on
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
    yield
    for layer in layers:
        layer.training = layer.gradient_checkpointing = False


def walked_gradients(model: PreTrainedModel, tree: TokenTree, budget: int) -> Gradients:
    model.zero_grad()
    walk(partition(tree, budget), lambda piece, memory: tree_loss(model, piece.tree, memory))
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


@given(forest=forests(), budget=st.integers(1, 40), recompute=st.booleans())
def test_gradients_of_pieces_equal_those_of_separate_sequences(
    model64: PreTrainedModel, forest: Forest, budget: int, recompute: bool
) -> None:
    tree = build(forest.trajectories, forest.advantages, forest.weights)
    if not len(tree.targets):
        return
    expected = gradients(model64, row_loss(model64, forest))
    with checkpointed(model64, recompute):
        assert_close(walked_gradients(model64, tree, budget), expected)


def long_tree() -> TokenTree:
    """Six sequences of 20 tokens that part at depths 5, 8, 11, …; those before the last three are trained."""
    items = [trajectory(f"r{i}", [0] * (5 + 3 * i) + [1 + i % 4] * (15 - 3 * i), [False] * 3 + [True] * 17) for i in range(5)]
    return build(items, {item.rollout_id: 1.0 for item in items}, [item.trained.astype(np.float32) for item in items])


@pytest.mark.parametrize("budget", [1, 4, 7, 100])
def test_values_without_gradients_are_those_of_the_whole_tree(budget: int) -> None:
    model, tree = float64_model("llama"), long_tree()
    losses: list[torch.Tensor] = []

    def evaluate(piece: Piece, memory: Memory) -> None:
        losses.append(tree_loss(model, piece.tree, memory))

    with torch.no_grad():
        walk(partition(tree, budget), evaluate)
        torch.testing.assert_close(torch.stack(losses).sum(), tree_loss(model, tree), rtol=1e-12, atol=0)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("budget", [1, 4, 7])
def test_keys_and_values_live_as_long_as_the_pieces_that_hang_on_them(recompute: bool, budget: int) -> None:
    model, pieces = float64_model("llama"), partition(long_tree(), budget)
    alive: dict[int, list[weakref.ref[torch.Tensor]]] = {}

    def evaluate(piece: Piece, memory: Memory) -> torch.Tensor:
        loss = tree_loss(model, piece.tree, memory)
        assert not len(memory._joined), "nothing holds copies of carried keys and values"
        index = len(alive)
        kept = [weakref.ref(kept.tensor) for pair in memory._kept.values() for kept in pair]
        assert len(kept) == (4 if index in {p.parent for p in pieces} else 0)
        alive[index] = kept
        ancestors = {index}
        while (parent := pieces[min(ancestors)].parent) >= 0:
            ancestors.add(parent)
        assert all((ref() is not None) == (i in ancestors) for i, refs in alive.items() for ref in refs)
        return loss

    gc.disable()  # what only the collector frees would pile up between its rounds
    try:
        with checkpointed(model, recompute):
            walk(pieces, evaluate)
        assert all(ref() is None for refs in alive.values() for ref in refs)
    finally:
        gc.enable()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_stays_near_float64(dtype: torch.dtype) -> None:
    model, tree = float64_model("llama"), long_tree()
    expected = walked_gradients(model, tree, 4)
    actual = walked_gradients(random_model("llama").to(dtype), tree, 4)
    scale = max(float(gradient.abs().max()) for gradient in expected.values())
    for name, gradient in actual.items():
        assert float((gradient.double() - expected[name]).abs().max()) < (1e-5 if dtype == torch.float32 else 0.05) * scale, name
