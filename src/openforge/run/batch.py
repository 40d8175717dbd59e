"""Finished units → one optimizer batch.

Invariant: every sampled token of every rollout handed in is counted once, as trained or under one mask reason; group statistics are per
rollout, however many trajectories a rollout has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from openforge.coordinator import mask, trajectories
from openforge.engines.training import TrainSettings
from openforge.pool import Store
from openforge.rl import group_advantages, token_weights, zero_variance
from openforge.trees import build
from openforge.types import Call, MaskReason, Rollout, TokenTree, Trajectory


@dataclass(frozen=True, kw_only=True)
class Group:
    """The rollouts of one unit with their calls."""

    unit: int
    members: list[tuple[Rollout, list[Call]]]

    @classmethod
    def read(cls, store: Store, unit: int) -> Group:
        return cls(unit=unit, members=[(rollout, store.calls(rollout.id)) for rollout in store.group(unit)])

    def rewards(self) -> list[float]:
        """Rewards of the scored rollouts, in order."""
        return [rollout.reward.value for rollout, _ in self.members if rollout.reward is not None]


@dataclass(frozen=True, kw_only=True)
class Batch:
    tree: TokenTree | None
    """None when no token is left to train on."""
    row: dict[str, Any]
    """What the metrics say about the data of this step."""
    rollouts: list[Rollout]


def make_batch(groups: Sequence[Group], settings: TrainSettings, *, version: int, vocabulary: int, context_length: int) -> Batch:
    """Assemble trajectories, mask what must not or cannot be trained, weigh what is left and merge it into one tree.

    `version` is the trainer's, against which the staleness of the sampled tokens is counted; `vocabulary` and `context_length` are its
    model's. Calls that do not fit together, or were not sampled from this model, are a `UserError` that names rollout and call.
    """
    kept: list[Trajectory] = []
    everything: list[Trajectory] = []
    advantages: dict[str, float] = {}
    unit_of: dict[str, int] = {}
    for group in groups:
        rewards = group.rewards()
        flat = zero_variance(rewards)
        scored = iter(group_advantages(rewards, settings.advantage).tolist() if rewards else [])
        for rollout, calls in group.members:
            unit_of[rollout.id] = group.unit
            paths = trajectories(calls, context_length)
            if rollout.reward is None:
                paths = [mask(path, MaskReason.NO_REWARD) for path in paths]
            else:
                advantages[rollout.id] = next(scored)
                if flat:
                    paths = [mask(path, MaskReason.ZERO_VARIANCE) for path in paths]
            everything += paths
            kept += [path for path in paths if path.trained.any()]
    weights = token_weights(kept, settings.aggregation, unit_of)
    tree = build(kept, advantages, weights, vocabulary) if kept else None
    rollouts = [rollout for group in groups for rollout, _ in group.members]
    return Batch(tree=tree, row=_describe(groups, everything, rollouts, version), rollouts=rollouts)


def _describe(groups: Sequence[Group], paths: Sequence[Trajectory], rollouts: Sequence[Rollout], version: int) -> dict[str, Any]:
    rewards = [value for group in groups for value in group.rewards()]
    sampled = sum(int(path.sampled.sum()) for path in paths)
    trained = sum(int(path.trained.sum()) for path in paths)
    lags = version - np.concatenate([np.empty(0, np.int32), *(path.versions[path.trained] for path in paths)])
    masked: Counter[str] = Counter()
    for path in paths:
        masked.update({str(reason): count for reason, count in path.masked.items()})
    assert sampled == trained + masked.total(), (sampled, trained, masked)
    notes = [call.request.get("normalised", {}) for group in groups for _, calls in group.members for call in calls]
    return {
        "groups": len(groups),
        "rollouts": len(rollouts),
        "scored": len(rewards),
        "reward_mean": fmean(rewards) if rewards else None,
        "reward_std": pstdev(rewards) if rewards else None,
        "outcomes": dict(Counter(str(rollout.outcome) for rollout in rollouts)),
        "sampled_tokens": sampled,
        "trained_tokens": trained,
        "trained_share": trained / sampled if sampled else None,
        "masked": dict(masked),
        "prefix_won": sum(note.get("prefix_won", 0) for note in notes),
        "staleness_mean": float(lags.mean()) if len(lags) else None,
        "staleness_max": int(lags.max()) if len(lags) else None,
    }
