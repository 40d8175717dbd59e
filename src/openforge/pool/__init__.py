"""The data pool: the durable call log and run state (`Store`), and the order units go to the trainer in (`Scheduler`).

Invariant: what was recorded is never lost, and a unit is trained at most once.
"""

from openforge.pool.database import StoreError
from openforge.pool.records import Checkpoint, Counts, Place, Recovery, UnfinishedUnit, Unit, UnitState
from openforge.pool.scheduler import Scheduler, ScheduleSettings, ScheduleSnapshot
from openforge.pool.store import Store

__all__ = [
    "Checkpoint",
    "Counts",
    "Place",
    "Recovery",
    "ScheduleSettings",
    "ScheduleSnapshot",
    "Scheduler",
    "Store",
    "StoreError",
    "UnfinishedUnit",
    "Unit",
    "UnitState",
]
