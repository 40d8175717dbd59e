"""Which groups carry no gradient."""

from __future__ import annotations

from openforge.rl import zero_variance


def test_a_group_with_one_reward_throughout_has_no_variance() -> None:
    assert zero_variance([1.0, 1.0, 1.0])
    assert zero_variance([0.25])
    assert zero_variance([])
    assert not zero_variance([0.0, 1.0, 0.0])
