from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from openforge.rewards import RewardFailed, as_reward
from openforge.types import Reward


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        (True, 1.0),
        (False, 0.0),
        (2, 2.0),
        (-0.5, -0.5),
        (np.float32(0.5), 0.5),
        (np.bool_(True), 1.0),
        (np.int64(3), 3.0),
        (np.array(0.25), 0.25),
        (torch.tensor(0.75), 0.75),
        ({"reward": 1}, 1.0),
        (Reward(value=0.1), 0.1),
    ],
)
def test_numbers_are_rewards(value: Any, reward: float) -> None:
    got = as_reward(value)
    assert got == Reward(value=reward)
    assert type(got.value) is float


def test_parts_are_kept() -> None:
    assert as_reward({"reward": 0.5, "parts": {"style": True, "tests": 0}}) == Reward(value=0.5, parts={"style": 1.0, "tests": 0.0})


@pytest.mark.parametrize(
    "value",
    [
        None,
        "1.0",
        "",
        [1.0],
        1j,
        math.nan,
        math.inf,
        -math.inf,
        np.float32("nan"),
        np.zeros(2),
        torch.zeros(2),
        torch.tensor(math.nan),
        10**400,
        {},
        {"value": 1.0},
        {"reward": None},
        {"reward": 1.0, "part": {}},
        {"reward": 1.0, "parts": [1]},
        {"reward": 1.0, "parts": {"style": math.nan}},
        Reward(value=math.nan),
        Reward(value=1.0, parts={"style": math.inf}),
    ],
)
def test_nothing_else_is(value: Any) -> None:
    with pytest.raises(RewardFailed) as caught:
        as_reward(value)
    assert "\n" not in str(caught.value)
