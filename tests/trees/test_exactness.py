"""Tree training equals training on separate sequences: gradients in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from forest_cases import Forest, float64_model, forests, root_path, sequence, trajectory
from hypothesis import given
from transformers import PreTrainedModel

from openforge.bench.routing import Routing
from openforge.trees.attention import BACKEND
from openforge.trees.backends.segments import segment_backend
from openforge.trees.build import build
from openforge.trees.carry import Memory
from openforge.trees.forward import forward
from openforge.types import TokenTree

Gradients = dict[str, torch.Tensor]


def gradients(model: PreTrainedModel, loss: torch.Tensor) -> Gradients:
    model.zero_grad()
    loss.backward()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def tree_loss(model: PreTrainedModel, tree: TokenTree, memory: Memory | None = None) -> torch.Tensor:
    model.set_attn_implementation(BACKEND)
    logits = model.lm_head(forward(model, tree, segment_backend, memory))
    logprobs = logits.log_softmax(-1)[torch.from_numpy(tree.at).long(), torch.from_numpy(tree.targets).long()]
    return (logprobs * torch.from_numpy(tree.advantages).double() * torch.from_numpy(tree.weights).double()).sum()


def row_loss(model: PreTrainedModel, forest: Forest) -> torch.Tensor:
    model.set_attn_implementation("sdpa")
    total = torch.zeros((), dtype=torch.float64)
    for item, weight in zip(forest.trajectories, forest.weights, strict=True):
        if not item.trained.any():
            continue
        ids = torch.tensor(sequence(item))
        trained = np.flatnonzero(item.trained)
        at = torch.from_numpy(item.shared + trained)
        chosen = model(input_ids=ids[None]).logits[0].log_softmax(-1)[at - 1, ids[at]]
        total = total + (chosen * torch.from_numpy(weight[trained]).double()).sum() * forest.advantages[item.rollout_id]
    return total


def assert_close(actual: Gradients, expected: Gradients) -> None:
    scale = max(float(g.abs().max()) for g in expected.values())
    for name, gradient in expected.items():
        assert float((actual[name] - gradient).abs().max()) <= 1e-9 * max(scale, 1e-12), name


@given(forest=forests())
def test_gradients_of_trees_equal_those_of_separate_sequences(model64: PreTrainedModel, forest: Forest) -> None:
    tree = build(forest.trajectories, forest.advantages, forest.weights)
    if not len(tree.targets):
        return
    expected = gradients(model64, row_loss(model64, forest))
    assert_close(gradients(model64, tree_loss(model64, tree)), expected)


@pytest.mark.parametrize("name", ["qwen3_moe", "minimax_m2"])
@given(forest=forests())
def test_routers_choose_the_same_experts_in_trees_and_in_separate_sequences(name: str, forest: Forest) -> None:
    model = float64_model(name)
    tree = build(forest.trajectories, forest.advantages, forest.weights)
    if not len(tree.tokens):
        return
    with torch.no_grad():
        with Routing() as in_tree:
            forward(model, tree, segment_backend)
        assert len(in_tree.made) == 2
        model.set_attn_implementation("sdpa")
        for at in range(len(tree.tokens)):
            with Routing() as alone:
                model(input_ids=torch.tensor([root_path(tree, at)]))
            assert [choices[-1].tolist() for choices in alone.made] == [choices[at].tolist() for choices in in_tree.made]


def test_the_token_after_a_branch_is_trained(model64: PreTrainedModel) -> None:
    items = [trajectory(f"r{i}", [1, 2, 3, i], [False, False, False, True]) for i in range(4)]
    tree = build(items, {f"r{i}": 1.0 for i in range(4)}, [item.trained.astype("float32") for item in items])
    assert tree.tokens.tolist() == [1, 2, 3]
    assert tree.at.tolist() == [2, 2, 2, 2]
    assert tree.targets.tolist() == [0, 1, 2, 3]
    forest = Forest(items, {f"r{i}": 1.0 for i in range(4)}, [item.trained.astype("float32") for item in items])
    assert_close(gradients(model64, tree_loss(model64, tree)), gradients(model64, row_loss(model64, forest)))


@pytest.mark.slow
@pytest.mark.parametrize(("small", "kernel"), [(1, True), (4, True), (1, False), (64, False)])
@given(forest=forests())
def test_groups_of_every_size_with_and_without_the_fused_kernel_are_exact(
    model64: PreTrainedModel, small: int, kernel: bool, forest: Forest
) -> None:
    tree = build(forest.trajectories, forest.advantages, forest.weights)
    if not len(tree.targets):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("openforge.trees.backends.segments.SMALL", small)
        if not kernel:
            patch.setattr("openforge.trees.backends.segments._has_kernel", lambda q, v: False)
        actual = gradients(model64, tree_loss(model64, tree))
    assert_close(actual, gradients(model64, row_loss(model64, forest)))
