"""A decision keeps every contribution and its context, and is never dearer than the tree or its rows."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
from forest_cases import Forest, forests
from hypothesis import given
from hypothesis import strategies as st
from test_cost import COST
from test_exactness import assert_close, gradients, row_loss, tree_loss
from test_layout import segment_tree
from test_split import check_segments, contributions, path
from transformers import PreTrainedModel

from openforge.trees.build import build
from openforge.trees.cost import Cost
from openforge.trees.decide import decide, unshare
from openforge.trees.shape import leaves

costs = st.builds(
    Cost,
    position=st.floats(0.1, 10),
    pair=st.floats(0, 1),
    head_row=st.just(5.0),
    call=st.floats(0, 50),
    merge=st.floats(0, 5),
    piece=st.just(7.0),
)


@given(forest=forests(), cost=costs)
def test_a_decision_is_never_dearer_than_the_tree_or_its_rows(forest: Forest, cost: Cost) -> None:
    tree = build(forest.trajectories, forest.advantages, forest.weights)
    decided, rows = decide(tree, cost), unshare(tree)
    assert cost.of_tree(decided) <= min(cost.of_tree(tree), cost.of_tree(rows)) * (1 + 1e-12)
    for other in (decided, rows):
        check_segments(other)
        assert contributions(other) == contributions(tree)
        assert len(np.unique(other.at)) == len(np.unique(tree.at))


@given(forest=forests())
def test_rows_are_the_paths_to_the_leaves(forest: Forest) -> None:
    tree = build(forest.trajectories, forest.advantages, forest.weights)
    rows = unshare(tree)
    assert (rows.parents == -1).all()
    assert len(rows.parents) == leaves(tree).sum()
    paths = [path(tree, int(end) - 1) for end in tree.starts[1:][leaves(tree)]]
    assert [rows.tokens[start:end].tolist() for start, end in itertools.pairwise(rows.starts)] == paths


@given(forest=forests(), cost=costs)
def test_the_gradient_does_not_depend_on_the_decision(model64: PreTrainedModel, forest: Forest, cost: Cost) -> None:
    tree = build(forest.trajectories, forest.advantages, forest.weights)
    if not len(tree.targets):
        return
    expected = gradients(model64, row_loss(model64, forest))
    for decided in (decide(tree, cost), unshare(tree)):
        assert_close(gradients(model64, tree_loss(model64, decided)), expected)


def fan(prefix: int, rows: int, length: int) -> tuple[list[int], list[int], list[int]]:
    return [prefix, *[length] * rows], [-1, *[0] * rows], [0, *[prefix] * rows]


def test_a_common_first_token_is_repeated_and_a_long_prompt_is_shared() -> None:
    cost = dataclasses.replace(COST, position=40.0, merge=3.0, call=0.0)
    assert len(decide(segment_tree(*fan(1, 50, 20)), cost).parents) == 50, "20 positions would merge, to save one"
    assert len(decide(segment_tree(*fan(9, 50, 20)), cost).parents) == 51


def test_only_the_tree_where_it_pays_is_unshared_and_only_down_to_where_it_pays() -> None:
    lengths, parents, depths = fan(100, 3, 30)
    tree = segment_tree([*lengths, 1, 1, 60, 60, 200, 9, 9], [*parents, -1, 4, 5, 5, 4, 8, 8], [*depths, 0, 1, 2, 2, 1, 201, 201])
    decided = decide(tree, COST)
    assert decided.parents.tolist() == [-1, 0, 0, 0, -1, -1, -1, 6, 6]
    assert np.diff(decided.starts).tolist() == [100, 30, 30, 30, 62, 62, 201, 9, 9]
    assert decided.depths.tolist() == [0, 100, 100, 100, 0, 0, 0, 201, 201]
