"""What counts as a reward."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from openforge.types import Reward


class RewardFailed(Exception):
    """The reward could not be had; the message is one line on why. The rollout ends as an environment error, without a reward."""


def as_reward(value: Any) -> Reward:
    """A bool (1.0 or 0.0), any real number, `{"reward": number, "parts": {name: number}}` or a `Reward`, all finite, as a `Reward`.

    Raises `RewardFailed` for everything else.
    """
    if isinstance(value, Reward):
        return Reward(value=_finite(value.value), parts={str(name): _finite(part) for name, part in value.parts.items()})
    if isinstance(value, dict):
        parts = value.get("parts", {})
        if not isinstance(parts, dict) or not value.keys() <= {"reward", "parts"} or "reward" not in value:
            raise RewardFailed(f'a reward object is {{"reward": number, "parts": {{name: number}}}}, not {_short(value)}')
        return Reward(value=_finite(value["reward"]), parts={str(name): _finite(part) for name, part in parts.items()})
    return Reward(value=_finite(value))


def _finite(value: Any) -> float:
    number = value.item() if getattr(value, "ndim", None) == 0 else value  # scalars of numpy and torch
    if not isinstance(number, Real):
        raise RewardFailed(f"a reward is a number, not {_short(value)}")
    try:
        finite = math.isfinite(number)
    except OverflowError:  # an integer beyond the floats
        finite = False
    if not finite:
        raise RewardFailed(f"a reward is finite, not {_short(value)}")
    return float(number)


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 120 else text[:117] + "..."
