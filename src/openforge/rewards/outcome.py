"""Outcome rewards: one number at a rollout's end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from openforge.rewards.command import CommandReward
from openforge.rewards.function import FunctionReward
from openforge.rewards.settings import RewardSettings
from openforge.runfile.references import load_object
from openforge.types import AgentResult, Reward, Sandbox, Task, UserError

RewardFunction = Callable[[Task, AgentResult], Awaitable[Reward]]
"""Raises `RewardFailed` where there is no reward to be had."""


def load_reward(settings: RewardSettings, base_dir: Path, sandbox: Sandbox) -> RewardFunction:
    """The reward the section names. `base_dir` is the run file's folder. Raises `UserError` where file, function or program is missing."""
    if settings.command is not None:
        return CommandReward(settings.command, base_dir, sandbox, settings.timeout)
    assert settings.function is not None
    function = load_object(settings.function, base_dir, setting="reward.function")
    if not callable(function):
        raise UserError(f"reward.function: '{settings.function}' is no function")
    return FunctionReward(function, settings.function, settings.timeout)
