"""The maths of policy gradients: advantages, losses, aggregation, filters."""

from openforge.rl.advantages import group_advantages as group_advantages
from openforge.rl.aggregation import token_weights as token_weights
from openforge.rl.filters import zero_variance as zero_variance
