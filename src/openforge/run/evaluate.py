"""Held-out evaluation: every task once, through the same agent, gateway and engine as training.

Invariant: a rollout without a score is reported beside the accuracy, never counted as a wrong answer and never left unsaid.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from statistics import fmean

from openforge.run.rollouts import RolloutRunner
from openforge.types import Rollout, Sampling, Task

BASE, START, END = "base model", "before rl", "after rl"
"""Labels of a run's main evaluations: as fetched, as reinforcement learning found it, as it left it."""


async def evaluate(
    runner: RolloutRunner,
    tasks: Sequence[Task],
    *,
    name: str,
    label: str,
    step: int,
    sampling: Sampling,
    concurrency: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, object]:
    """Run `tasks` and return one metrics row of kind `eval`. `accuracy` is the mean reward over the scored rollouts."""
    began = time.monotonic()
    slots = asyncio.Semaphore(concurrency)
    done = 0

    async def one(index: int, task: Task) -> Rollout:
        nonlocal done
        async with slots:
            rollout = Rollout(id=f"eval-{uuid.uuid4().hex}", task_id=task.id, unit=-1, index=index, split=f"eval:{name}:{label}")
            ended = await runner.run(task, rollout, sampling)
        done += 1
        on_progress(done, len(tasks))
        return ended

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(index, task)) for index, task in enumerate(tasks)]
    rollouts = [task.result() for task in running]
    rewards = [rollout.reward.value for rollout in rollouts if rollout.reward is not None]
    return {
        "kind": "eval",
        "step": step,
        "label": label,
        "set": name,
        "accuracy": fmean(rewards) if rewards else None,
        "tasks": len(tasks),
        "scored": len(rewards),
        "seconds": time.monotonic() - began,
    }
