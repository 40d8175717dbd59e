"""Which tokens are left out of training, and why.

Invariant: a filter only turns `trained` off, and counts each token it turns off under its `MaskReason`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from openforge.types import BoolArray, MaskReason, Trajectory


def zero_variance(rewards: Sequence[float]) -> bool:
    """Whether a group's rewards are all equal, so that it carries no gradient (dynamic sampling of DAPO, arXiv 2503.14476, section 3.2)."""
    return len(set(rewards)) <= 1


def mask(trajectory: Trajectory, reason: MaskReason, where: BoolArray | None = None) -> Trajectory:
    """Turn training off where `where` (bool [L]; everywhere if None) holds."""
    dropped = trajectory.trained if where is None else trajectory.trained & where
    count = int(dropped.sum())
    if not count:
        return trajectory
    masked = {**trajectory.masked, reason: trajectory.masked.get(reason, 0) + count}
    return replace(trajectory, trained=trajectory.trained & ~dropped, masked=masked)


def mask_stale(trajectory: Trajectory, version: int, max_staleness: int) -> Trajectory:
    """Turn off tokens sampled more than `max_staleness` versions before `version`, the one being trained."""
    return mask(trajectory, MaskReason.STALE, np.asarray(trajectory.versions < version - max_staleness))
