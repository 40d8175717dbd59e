"""How much each trained token weighs in the loss.

Invariant: the weights are fixed over the whole optimizer batch and sum to 1 over it, before trees are built; packing, branching and the
size of micro-batches cannot change the loss.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Literal

import numpy as np

from openforge.types import FloatArray, Trajectory

Aggregation = Literal["token", "rollout", "group"]


def token_weights(
    trajectories: Sequence[Trajectory], aggregation: Aggregation = "token", groups: Mapping[str, Hashable] | None = None
) -> list[FloatArray]:
    """Weights of the optimizer batch `trajectories`: per trajectory float32 [L], 0 where a token is not trained.

    `token`: all trained tokens weigh the same (DAPO, arXiv 2503.14476, section 3.3, over the whole batch; CISPO does the same).
    `rollout`: all rollouts weigh the same, a rollout's tokens share its weight, over however many trajectories they are spread (GRPO).
    `group`: all groups weigh the same, a group's tokens share its weight (the prompt average of ScaleRL, arXiv 2510.13786).
    `groups` maps rollout id → group; needed for `group` alone. Units without a trained token have no share.
    """
    units: list[Hashable] = [_unit(trajectory.rollout_id, aggregation, groups) for trajectory in trajectories]
    counts: dict[Hashable, int] = {}
    for unit, trajectory in zip(units, trajectories, strict=True):
        counts[unit] = counts.get(unit, 0) + int(trajectory.trained.sum())
    shares = sum(count > 0 for count in counts.values())
    return [
        np.where(trajectory.trained, 1.0 / (shares * max(counts[unit], 1)) if shares else 0.0, 0.0).astype(np.float32)
        for unit, trajectory in zip(units, trajectories, strict=True)
    ]


def _unit(rollout_id: str, aggregation: Aggregation, groups: Mapping[str, Hashable] | None) -> Hashable:
    if aggregation == "token":
        return None
    if aggregation == "rollout":
        return rollout_id
    assert groups is not None, "aggregation 'group' needs the group of each rollout"
    return groups[rollout_id]
