"""Several ranks do what one does: gradients in float64, whole steps in float32, checkpoints, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forest_cases import Forest, forests, trajectory
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from rank_worker import MODELS, RankPool, gradients, steps
from test_exactness import assert_close
from transformers import AutoModelForCausalLM

from openforge.engines.training import TrainSettings
from openforge.trees.build import build
from openforge.types import TokenTree

pytestmark = pytest.mark.slow
TIMED = {"seconds", "tokens_per_second", "predicted_seconds", "prediction_error"}


@pytest.fixture(scope="session")
def pools() -> Iterator[dict[int, RankPool]]:
    started: dict[int, RankPool] = {}
    yield started
    for ranks in started.values():
        ranks.close()


@pytest.fixture(params=[2, 3])
def pool(request: pytest.FixtureRequest, pools: dict[int, RankPool]) -> RankPool:
    if request.param not in pools:
        pools[request.param] = RankPool(request.param)
    return pools[request.param]


@pytest.mark.parametrize("name", MODELS)
@example_settings(max_examples=15, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(forest=forests(), budget=st.integers(1, 40), recompute=st.booleans())
def test_gradients_summed_over_ranks_are_those_of_one(pool: RankPool, name: str, forest: Forest, budget: int, recompute: bool) -> None:
    tree = build(forest.trajectories, forest.advantages, forest.weights)
    expected, contributions = gradients(name, tree, 1000, False)
    results = pool.run("gradients", name, tree, budget, recompute)
    assert sum(own for _, own in results) == contributions == len(tree.targets)
    for summed, _ in results:
        assert_close(summed, expected)


def batches(seed: int) -> list[list[TokenTree]]:
    """Three optimizer batches of a few trees; the last is one trajectory, so that all ranks but one have no work."""
    random = np.random.default_rng(seed)

    def tree(batch: int, group: int, rollouts: int) -> TokenTree:
        prompt = random.integers(0, 48, 9).tolist()
        items = [
            trajectory(f"{batch}.{group}.{i}", prompt + random.integers(0, 48, 4 + 5 * i).tolist(), [False] * 9 + [True] * (4 + 5 * i))
            for i in range(rollouts)
        ]
        weights = [np.full(len(item.tokens), 0.01, np.float32) for item in items]
        return build(items, {item.rollout_id: (-1.0) ** i for i, item in enumerate(items)}, weights)

    return [[tree(0, group, 4) for group in range(3)], [tree(1, group, 3) for group in range(2)], [tree(2, 0, 1)]]


def train_settings(**values: Any) -> TrainSettings:
    return TrainSettings(**{"dtype": "float32", "learning_rate": 1e-3, "weight_decay": 0.1, **values})


def assert_near(actual: dict[str, float], expected: dict[str, float]) -> None:
    assert actual.keys() | TIMED == expected.keys() | TIMED
    for name in expected.keys() - TIMED - {"positions", "pieces", "shared"}:
        assert actual[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize(
    "change",
    [{}, {"activation_checkpointing": True, "tokens_per_microbatch": 16}, {"layout": "tree"}],
    ids=["auto", "checkpointed", "tree"],
)
def test_steps_on_ranks_are_those_of_one_process(pool: RankPool, model_dir: Path, change: dict[str, Any]) -> None:
    work = batches(0)
    expected_metrics, expected_weights, expected_logprobs = steps(model_dir, train_settings(), work, False, None)
    results = pool.run("steps", model_dir, train_settings(**change), [batch[::-1] for batch in work], False, None)
    for metrics, weights, logprobs in results:
        for actual, expected in zip(metrics, expected_metrics, strict=True):
            assert_near(actual, expected)
        assert weights.keys() == expected_weights.keys()
        for name, expected_tensor in expected_weights.items():
            torch.testing.assert_close(weights[name], expected_tensor, rtol=1e-4, atol=2e-5)
        assert logprobs.keys() == expected_logprobs.keys()
        for rollout, values in expected_logprobs.items():
            np.testing.assert_allclose(logprobs[rollout], values, atol=1e-4)
    first = results[0]
    for metrics, weights, _ in results[1:]:
        without_times = [[{k: v for k, v in row.items() if k not in TIMED} for row in rows] for rows in (metrics, first[0])]
        assert without_times[0] == without_times[1]
        assert all(torch.equal(weights[name], tensor) for name, tensor in first[1].items())


def test_a_checkpoint_goes_from_ranks_to_one_process_and_back(pool: RankPool, model_dir: Path, tmp_path: Path) -> None:
    first, second, third = batches(1)
    straight = steps(model_dir, train_settings(), [first, second, third], False, None)
    pool.run("steps", model_dir, train_settings(), [first], False, tmp_path / "ranks")
    AutoModelForCausalLM.from_pretrained(tmp_path / "ranks", dtype=torch.float32)
    assert "FSDP" not in (tmp_path / "ranks" / "config.json").read_text()
    steps(tmp_path / "ranks", train_settings(), [second], True, tmp_path / "one")
    for metrics, weights, _ in pool.run("steps", tmp_path / "one", train_settings(), [third], True, None):
        assert_near(metrics[0], straight[0][2])
        for name, expected in straight[1].items():
            torch.testing.assert_close(weights[name], expected, rtol=1e-4, atol=2e-5)


def test_all_ranks_skip_a_step_that_one_of_them_cannot_take(pool: RankPool, model_dir: Path) -> None:
    first, *_ = batches(2)
    first[-1].weights[-1] = np.inf
    unchanged = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).state_dict()
    for metrics, weights, _ in pool.run("steps", model_dir, train_settings(), [first], False, None):
        assert (metrics[0]["skipped"], metrics[0]["skipped_steps"]) == (1, 1)
        assert all(torch.equal(weights[name], tensor) for name, tensor in unchanged.items())


@pytest.mark.parametrize("trained", [True, False])
def test_ranks_that_were_given_different_trees_say_so(pool: RankPool, model_dir: Path, trained: bool) -> None:
    with pytest.raises(AssertionError, match=r"UserError: rank 1 was given other trees than rank 0"):
        pool.run("different", model_dir, train_settings(), batches(0)[0], trained)
