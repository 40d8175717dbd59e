"""Tasks: reading them, and the order in which a run takes them."""

from openforge.tasks.jsonl import load_tasks as load_tasks
from openforge.tasks.mixing import TaskOrder as TaskOrder
from openforge.tasks.mixing import discrepancy as discrepancy
from openforge.tasks.settings import TaskSettings as TaskSettings
