"""From the call log to training data: calls -> typed lineages -> trajectories.

Invariant: every sampled token is trained or masked with a reason, once.
"""

from openforge.coordinator.lineage import Evidence, Lineage
from openforge.coordinator.messages import conversation, offered_tools
from openforge.coordinator.threads import lineages
from openforge.coordinator.trajectory import Delivery, delivered, mask, mask_beyond, trajectories

__all__ = [
    "Delivery",
    "Evidence",
    "Lineage",
    "conversation",
    "delivered",
    "lineages",
    "mask",
    "mask_beyond",
    "offered_tools",
    "trajectories",
]
