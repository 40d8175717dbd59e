"""Rewards of a group → advantages.

Invariant: statistics are taken over rollouts, one reward each. How many trajectories or tokens a rollout has cannot change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from openforge.types import FloatArray

Normalisation = Literal["std", "none"]


def group_advantages(rewards: Sequence[float], normalise: Normalisation = "std") -> FloatArray:
    """Advantage of each rollout of one prompt group: float32 [G].

    `std`: (r - mean) / std over the group, with the biased standard deviation, and 0 throughout where all rewards are equal
    (GRPO: arXiv 2402.03300, eq. in section 4.1.2; kept by DAPO, arXiv 2503.14476, eq. 9).
    `none`: r - mean (Dr. GRPO, arXiv 2503.20783, section 3.2: dividing by std weighs easy and hard prompts more).
    """
    values = np.asarray(rewards, np.float64)
    assert np.isfinite(values).all()
    centred = values - values.mean()
    if normalise == "std":
        std = values.std()
        # equal rewards leave a rounding error, not a signal
        centred = centred / std if std > 1e-8 * max(1.0, float(np.abs(values).max())) else np.zeros_like(centred)
    advantages: FloatArray = centred.astype(np.float32)
    return advantages
