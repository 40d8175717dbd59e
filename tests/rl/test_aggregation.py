from __future__ import annotations

from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openforge.rl.aggregation import Aggregation, token_weights
from openforge.types import LineageKind, Trajectory

GROUPS = {f"r{i}": i // 2 for i in range(6)}


def item(rollout_id: str, trained: list[bool]) -> Trajectory:
    mask = np.array(trained, bool)
    zeros = np.zeros(len(mask), np.float32)
    ids = zeros.astype(np.int32)
    return Trajectory(
        rollout_id=rollout_id,
        kind=LineageKind.MAIN,
        call_ids=[],
        ends=np.empty(0, np.int32),
        tokens=ids,
        sampled=mask,
        trained=mask,
        logprobs=zeros,
        versions=ids,
        masked={},
    )


batches = st.lists(st.tuples(st.sampled_from(sorted(GROUPS)), st.lists(st.booleans(), min_size=1, max_size=9)), min_size=1, max_size=8)


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
@given(batch=batches)
def test_weights_sum_to_one_over_the_batch(aggregation: Aggregation, batch: list[tuple[str, list[bool]]]) -> None:
    trajectories = [item(*entry) for entry in batch]
    weights = token_weights(trajectories, aggregation, GROUPS)
    total = sum(float(w.sum(dtype=np.float64)) for w in weights)
    assert total == pytest.approx(1.0 if any(t.trained.any() for t in trajectories) else 0.0, abs=1e-6)
    assert all((w[~t.trained] == 0).all() for w, t in zip(weights, trajectories, strict=True))


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
@given(batch=batches, data=st.data())
def test_splitting_a_rollout_into_more_trajectories_changes_no_tokens_weight(
    aggregation: Aggregation, batch: list[tuple[str, list[bool]]], data: st.DataObject
) -> None:
    pieces: list[tuple[str, list[bool]]] = []
    for rollout, trained in batch:
        cuts = sorted({0, len(trained), *data.draw(st.lists(st.integers(1, len(trained)), max_size=2))})
        pieces.extend((rollout, trained[a:b]) for a, b in pairwise(cuts))
    whole = token_weights([item(*entry) for entry in batch], aggregation, GROUPS)
    split = token_weights([item(*entry) for entry in pieces], aggregation, GROUPS)
    np.testing.assert_array_equal(np.concatenate(whole), np.concatenate(split))


def test_each_setting_says_what_weighs_the_same() -> None:
    batch = [item("r0", [True]), item("r1", [True, True, True]), item("r2", [True, True, False, True, True])]
    token, rollout, group = (token_weights(batch, name, GROUPS) for name in ("token", "rollout", "group"))
    assert [w.sum() for w in token] == pytest.approx([1 / 8, 3 / 8, 4 / 8])
    assert [w.sum() for w in rollout] == pytest.approx([1 / 3] * 3)
    assert [w.sum() for w in group] == pytest.approx([1 / 8, 3 / 8, 1 / 2])
