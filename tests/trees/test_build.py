from __future__ import annotations

import numpy as np
import pytest
from forest_cases import Contribution, Forest, contributions, forests, root_path, sequence, trajectory
from hypothesis import given
from hypothesis import strategies as st

from openforge.trees.build import build
from openforge.trees.forward import position_ids
from openforge.trees.merge import merge
from openforge.trees.unmerge import unmerge
from openforge.types import Trajectory


def expected(forest: Forest) -> list[Contribution]:
    advantages = {name: float(np.float32(value)) for name, value in forest.advantages.items()}
    return sorted(
        (t.rollout_id, prefix, int(t.tokens[i]), -0.5, advantages[t.rollout_id], float(w[i]), 0)
        for t, w in zip(forest.trajectories, forest.weights, strict=True)
        for i, prefix in trained_prefixes(t)
    )


def trained_prefixes(trajectory: Trajectory) -> list[tuple[int, tuple[int, ...]]]:
    """Of each trained token: where it is among its trajectory's own, and the whole sequence before it."""
    whole = sequence(trajectory)
    return [(int(i), tuple(whole[: trajectory.shared + i])) for i in np.flatnonzero(trajectory.trained)]


@given(forest=forests())
def test_every_trained_token_becomes_one_contribution_at_the_end_of_its_own_prefix(forest: Forest) -> None:
    tree = build(forest.trajectories, forest.advantages, forest.weights)
    assert contributions(tree) == expected(forest)
    assert [len(root_path(tree, p)) - 1 for p in range(len(tree.tokens))] == position_ids(tree).tolist()


@given(forest=forests())
def test_the_tree_is_the_trie_of_all_whole_sequences_down_to_their_last_trained_token(forest: Forest) -> None:
    tree = build(forest.trajectories, forest.advantages, forest.weights)
    paths = [root_path(tree, p) for p in range(len(tree.tokens))]
    assert len(set(paths)) == len(paths)
    assert set(paths) == {prefix[: k + 1] for t in forest.trajectories for _, prefix in trained_prefixes(t) for k in range(len(prefix))}
    children = np.bincount(tree.parents[tree.parents >= 0], minlength=len(tree.parents))
    assert (children != 1).all(), "a segment goes on to its branch"
    assert (tree.parents < np.arange(len(tree.parents))).all()


@given(forest=forests(), cut=st.integers(0, 7))
def test_merged_trees_keep_every_contribution(forest: Forest, cut: int) -> None:
    parts = [slice(None, cut), slice(cut, None)]
    merged = merge([build(forest.trajectories[part], forest.advantages, forest.weights[part]) for part in parts])
    assert contributions(merged) == expected(forest)
    assert (merged.parents < np.arange(len(merged.parents))).all()


@given(forest=forests())
def test_unmerge_gives_each_rollout_its_own_tokens_in_order(forest: Forest) -> None:
    tree = build(forest.trajectories, forest.advantages, forest.weights)
    rows = unmerge(tree, tree.targets.astype(np.float32))
    wanted: dict[str, list[int]] = {}
    for item in forest.trajectories:
        if item.trained.any():
            wanted.setdefault(item.rollout_id, []).extend(item.tokens[item.trained].tolist())
    assert {name: row.astype(int).tolist() for name, row in rows.items()} == wanted


def test_groups_that_share_a_system_prompt_share_its_positions() -> None:
    system = list(range(50))
    items = [trajectory(f"{g}{r}", [*system, 60 + g, 70 + r, 1], [False] * 51 + [True, True]) for g in range(3) for r in range(4)]
    tree = build(items, {t.rollout_id: 1.0 for t in items}, [t.trained.astype(np.float32) for t in items])
    assert len(tree.tokens) == 50 + 3 + 12
    assert len(tree.targets) == 24


def test_identical_rollouts_share_positions_and_keep_their_own_contributions() -> None:
    items = [trajectory(name, [1, 2, 3], [False, True, True]) for name in "ab"]
    tree = build(items, {"a": 1.0, "b": -1.0}, [np.ones(3, np.float32)] * 2)
    assert tree.tokens.tolist() == [1, 2]
    assert tree.rows.tolist() == [0, 0, 1, 1]


def test_nothing_trained_is_an_empty_tree() -> None:
    tree = build([trajectory("a", [1, 2], [False, False])], {}, [np.ones(2, np.float32)])
    assert len(tree.tokens) == len(tree.targets) == len(tree.parents) == 0
    assert merge([tree, tree]).rollout_ids == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_refused_with_the_rollouts_name(bad: float) -> None:
    with pytest.raises(ValueError, match="rollout a"):
        build([trajectory("a", [1, 2], [False, True])], {"a": bad}, [np.ones(2, np.float32)])


def test_a_trained_first_token_is_refused() -> None:
    with pytest.raises(ValueError, match="rollout a"):
        build([trajectory("a", [1, 2], [True, True])], {"a": 1.0}, [np.ones(2, np.float32)])
