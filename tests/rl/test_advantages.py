from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openforge.rl.advantages import group_advantages

rewards = st.lists(st.floats(-10, 10), min_size=1, max_size=16)


@given(rewards=rewards)
def test_advantages_are_centred_and_standardised(rewards: list[float]) -> None:
    advantages = group_advantages(rewards)
    assert advantages.dtype == np.float32
    assert float(advantages.sum()) == pytest.approx(0, abs=1e-3)
    assert float(advantages.std()) == pytest.approx(1, abs=1e-3) or not advantages.any()


def test_equal_rewards_have_no_advantage() -> None:
    assert group_advantages([0.1] * 7).tolist() == [0.0] * 7
    assert group_advantages([0.1] * 7, "none").tolist() == pytest.approx([0.0] * 7)
    assert group_advantages([3.0]).tolist() == [0.0]


def test_without_normalisation_the_scale_of_rewards_is_kept() -> None:
    assert group_advantages([0, 0, 0, 4], "none").tolist() == [-1, -1, -1, 3]
    assert group_advantages([0, 4]).tolist() == [-1, 1]
