"""Rewards: from what an agent left behind to a number.

Invariant: a reward that cannot be had is `RewardFailed`, never a 0.
"""

from openforge.rewards.outcome import RewardFunction as RewardFunction
from openforge.rewards.outcome import load_reward as load_reward
from openforge.rewards.settings import RewardSettings as RewardSettings
from openforge.rewards.value import RewardFailed as RewardFailed
from openforge.rewards.value import as_reward as as_reward
