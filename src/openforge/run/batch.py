"""Finished units → one optimizer batch.

Invariant: every sampled token of every rollout handed in is counted once, as trained or under one mask reason; group statistics are per
rollout, however many trajectories a rollout has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from openforge.coordinator import mask, trajectories
from openforge.engines.training import TrainSettings
from openforge.pool import Store
from openforge.rl import group_advantages, token_weights, zero_variance
from openforge.trees import build
from openforge.types import Call, IntArray, MaskReason, Rollout, TokenTree, Trajectory


@dataclass(frozen=True, kw_only=True)
class Group:
    """The rollouts of one group with their calls; where single rollouts are the units, one of them, and what it is compared with."""

    group: int
    domain: str
    members: list[tuple[Rollout, list[Call]]]
    others: list[float] = field(default_factory=list)
    """Rewards of rollouts that are not members."""

    def rewards(self) -> list[float]:
        """Rewards of the scored rollouts, in order."""
        return [rollout.reward.value for rollout, _ in self.members if rollout.reward is not None]


def read_groups(store: Store, units: Sequence[int], per_group: int) -> list[Group]:
    """The units of a step, from the record alone; `per_group` consecutive units are a group."""
    groups = []
    for unit in units:
        rollouts = store.group(unit)
        task = store.task(rollouts[0].task_id)
        groups.append(
            Group(
                group=unit // per_group,
                domain=task.domain if task else "default",
                members=[(rollout, store.calls(rollout.id)) for rollout in rollouts],
                others=_others(store, unit, per_group) if per_group > 1 else [],
            )
        )
    return groups


def _others(store: Store, unit: int, per_group: int) -> list[float]:
    """The rewards of its group that were known when the rollout `unit` could first be trained: as it ended, or as they first differed.

    A sibling that ended later is not among them, however late the rollout is trained; so it is compared with the same in every replay.
    """
    first = unit // per_group * per_group
    rollouts = [rollout for sibling in range(first, first + per_group) for rollout in store.group(sibling) if rollout.reward is not None]
    rollouts.sort(key=lambda rollout: (rollout.ended_at, rollout.unit))
    known = [(rollout.unit, rollout.reward.value) for rollout in rollouts if rollout.reward is not None]
    differ = next((count for count in range(2, len(known)) if known[count - 1][1] != known[0][1]), len(known))
    ended = next((count for count, (sibling, _) in enumerate(known, 1) if sibling == unit), 0)
    return [reward for sibling, reward in known[: max(differ, ended)] if sibling != unit]


@dataclass(frozen=True, kw_only=True)
class Batch:
    tree: TokenTree | None
    """None when no token is left to train on."""
    row: dict[str, Any]
    """What the metrics say about the data of this step."""
    domains: dict[str, dict[str, Any]]
    """The same of each domain that has a part in it."""
    rollouts: list[Rollout]


def make_batch(groups: Sequence[Group], settings: TrainSettings, *, version: int, vocabulary: int, context_length: int) -> Batch:
    """Assemble trajectories, mask what must not or cannot be trained, weigh what is left and merge it into one tree.

    `version` is the trainer's, against which the staleness of the sampled tokens is counted; `vocabulary` and `context_length` are its
    model's. Calls that do not fit together, or were not sampled from this model, are a `UserError` that names rollout and call.
    """
    kept: list[Trajectory] = []
    everything: list[Trajectory] = []
    advantages: dict[str, float] = {}
    group_of: dict[str, Group] = {}
    for group in groups:
        rewards = group.rewards() + group.others
        flat = zero_variance(rewards)
        scored = iter(group_advantages(rewards, settings.advantage).tolist() if rewards else [])
        for rollout, calls in group.members:
            group_of[rollout.id] = group
            paths = trajectories(calls, context_length)
            if rollout.reward is None:
                paths = [mask(path, MaskReason.NO_REWARD) for path in paths]
            else:
                advantages[rollout.id] = next(scored)
                if flat:
                    paths = [mask(path, MaskReason.ZERO_VARIANCE) for path in paths]
            everything += paths
            kept += [path for path in paths if path.trained.any()]
    weights = token_weights(kept, settings.aggregation, {id: group.group for id, group in group_of.items()})
    tree = build(kept, advantages, weights, vocabulary) if kept else None
    rollouts = [rollout for group in groups for rollout, _ in group.members]
    domains = _describe_domains(groups, [(group_of[path.rollout_id].domain, path) for path in everything], version)
    return Batch(tree=tree, row=_describe(groups, everything, rollouts, version), domains=domains, rollouts=rollouts)


def _describe(groups: Sequence[Group], paths: Sequence[Trajectory], rollouts: Sequence[Rollout], version: int) -> dict[str, Any]:
    rewards = [value for group in groups for value in group.rewards()]
    sampled = sum(int(path.sampled.sum()) for path in paths)
    trained = sum(int(path.trained.sum()) for path in paths)
    lags = _lags(paths, version)
    masked: Counter[str] = Counter()
    for path in paths:
        masked.update({str(reason): count for reason, count in path.masked.items()})
    assert sampled == trained + masked.total(), (sampled, trained, masked)
    notes = [call.request.get("normalised", {}) for group in groups for _, calls in group.members for call in calls]
    return {
        "groups": len({group.group for group in groups}),
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


def _describe_domains(groups: Sequence[Group], paths: Sequence[tuple[str, Trajectory]], version: int) -> dict[str, dict[str, Any]]:
    """`paths`: domain and trajectory."""
    rows = {}
    for domain in sorted({group.domain for group in groups}):
        own = [group for group in groups if group.domain == domain]
        rewards = [value for group in own for value in group.rewards()]
        lags = _lags([path for name, path in paths if name == domain], version)
        rows[domain] = {
            "groups": len({group.group for group in own}),
            "reward_mean": fmean(rewards) if rewards else None,
            "staleness_mean": float(lags.mean()) if len(lags) else None,
        }
    return rows


def _lags(paths: Sequence[Trajectory], version: int) -> IntArray:
    """How many versions old each trained token is."""
    lags: IntArray = version - np.concatenate([np.empty(0, np.int32), *(path.versions[path.trained] for path in paths)])
    return lags
