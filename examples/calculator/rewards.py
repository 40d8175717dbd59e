"""The calculator's reward: exact match of the last number the agent printed."""

import re

from openforge.types import AgentResult, Task

NUMBER = re.compile(r"-?\d[\d,.]*")


def exact_match(task: Task, result: AgentResult) -> float:
    """1.0 if the last number in the output is the task's answer, plain or with thousands separators, else 0.0."""
    numbers = NUMBER.findall(result.output)
    answer = int(task.data["answer"])
    return float(bool(numbers) and numbers[-1].rstrip(".,") in (str(answer), f"{answer:,}"))
