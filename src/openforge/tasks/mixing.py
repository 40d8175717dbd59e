"""The endless order in which a run takes its tasks.

Invariant: a pure function of tasks, seed and weights, so that a position is all it takes to go on after a crash.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping, Sequence

from openforge.types import Task, UserError


class TaskOrder:
    """An endless iterator over tasks: each domain reshuffled every time it is through, domains interleaved in proportion to their weights.

    The interleave is stride scheduling (Waldspurger and Weihl 1995): a domain's j-th task is due at time (j + 1/2) / weight. The default
    weight is a domain's number of tasks, by which every run of len(tasks) takes has each task exactly once.
    """

    def __init__(self, tasks: Sequence[Task], seed: int, *, weights: Mapping[str, float] | None = None, position: int = 0) -> None:
        """Goes on at `position`, the number of tasks taken before. Raises `UserError` where weights and domains do not match."""
        assert tasks
        self._domains: dict[str, list[Task]] = {}
        for task in tasks:
            self._domains.setdefault(task.domain, []).append(task)
        self._weights = dict(weights) if weights else {name: float(len(group)) for name, group in self._domains.items()}
        if self._weights.keys() != self._domains.keys():
            odd = sorted(self._weights.keys() ^ self._domains.keys())
            raise UserError(f"tasks.weights: give every domain of the tasks a weight, and no other; look at {', '.join(odd)}")
        self._seed = seed
        self._due = [(0.5 / self._weights[name], name, 0) for name in sorted(self._domains)]
        heapq.heapify(self._due)
        self.position = 0
        while self.position < position:
            self._take()

    def __iter__(self) -> TaskOrder:
        return self

    def __next__(self) -> Task:
        name, taken = self._take()
        tasks = self._domains[name]
        epoch, place = divmod(taken, len(tasks))
        shuffled = list(range(len(tasks)))
        random.Random(f"{self._seed}/{name}/{epoch}").shuffle(shuffled)
        return tasks[shuffled[place]]

    def _take(self) -> tuple[str, int]:
        _, name, taken = self._due[0]
        heapq.heapreplace(self._due, ((taken + 1.5) / self._weights[name], name, taken + 1))
        self.position += 1
        return name, taken
