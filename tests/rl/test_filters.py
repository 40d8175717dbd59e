from __future__ import annotations

import numpy as np

from openforge.rl.filters import mask, mask_stale, zero_variance
from openforge.types import LineageKind, MaskReason, Trajectory


def example() -> Trajectory:
    trained = np.array([False, True, True, False, True])
    return Trajectory(
        rollout_id="r",
        kind=LineageKind.MAIN,
        call_ids=[],
        tokens=np.arange(5, dtype=np.int32),
        sampled=np.array([False, True, True, True, True]),
        trained=trained,
        logprobs=np.zeros(5, np.float32),
        versions=np.array([-1, 3, 4, 4, 6], np.int32),
        masked={MaskReason.ABORTED: 1},
    )


def test_stale_tokens_are_masked_and_counted() -> None:
    fresh = mask_stale(example(), version=6, max_staleness=2)
    assert fresh.trained.tolist() == [False, False, True, False, True]
    assert fresh.masked == {MaskReason.ABORTED: 1, MaskReason.STALE: 1}
    assert fresh.sampled.sum() == fresh.trained.sum() + sum(fresh.masked.values())


def test_masking_a_whole_trajectory_counts_what_was_trained() -> None:
    nothing = mask(example(), MaskReason.ZERO_VARIANCE)
    assert not nothing.trained.any()
    assert nothing.masked[MaskReason.ZERO_VARIANCE] == 3


def test_nothing_to_mask_leaves_the_trajectory_as_it_is() -> None:
    trajectory = example()
    assert mask_stale(trajectory, version=6, max_staleness=3) is trajectory


def test_zero_variance() -> None:
    assert zero_variance([1.0, 1.0])
    assert zero_variance([0.5])
    assert not zero_variance([1.0, 0.0])
