"""The endless order in which a run takes its tasks.

Invariant: a pure function of tasks, seed, weights and, for each domain, how many tasks it gave and how much of that was lost again; so
these counts are all it takes to go on after a crash. The shares of what is not lost never leave the weights by more than `discrepancy`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from openforge.types import Task, UserError


class TaskOrder:
    """An endless iterator over tasks: each domain reshuffled every time it is through, domains interleaved in proportion to their weights.

    The interleave is the divisor method of Webster, as stride scheduling (Waldspurger and Weihl 1995): a domain with n live tasks is due at
    time (n + 1/2) / weight, and the one that is due first is next. Live is what was taken and not given back, so a domain that loses a
    task is due again at once. The default weight is a domain's number of tasks, by which every run of len(tasks) takes has each once.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        seed: int,
        *,
        weights: Mapping[str, float] | None = None,
        taken: Mapping[str, int] | None = None,
        lost: Mapping[str, float] | None = None,
    ) -> None:
        """Goes on where each domain gave `taken` tasks and got `lost` of them back. Raises `UserError` where weights and domains do not
        match."""
        assert tasks
        self._domains: dict[str, list[Task]] = {}
        for task in sorted(tasks, key=lambda task: task.domain):  # stable: the order within a domain stays
            self._domains.setdefault(task.domain, []).append(task)
        weights = dict(weights) if weights else {name: float(len(group)) for name, group in self._domains.items()}
        if weights.keys() != self._domains.keys():
            odd = sorted(weights.keys() ^ self._domains.keys())
            raise UserError(f"tasks.weights: give every domain of the tasks a weight, and no other; look at {', '.join(odd)}")
        self.shares = {name: weights[name] / sum(weights.values()) for name in self._domains}
        """Domain to its share of the mix; they sum to 1."""
        self._seed = seed
        self._taken = {name: (taken or {}).get(name, 0) for name in self._domains}
        self._live = {name: self._taken[name] - (lost or {}).get(name, 0.0) for name in self._domains}

    def __iter__(self) -> TaskOrder:
        return self

    def __next__(self) -> Task:
        name = min(self._domains, key=lambda name: (self._live[name] + 0.5) / self.shares[name])
        tasks = self._domains[name]
        epoch, place = divmod(self._taken[name], len(tasks))
        shuffled = list(range(len(tasks)))
        random.Random(f"{self._seed}/{name}/{epoch}").shuffle(shuffled)
        self._taken[name] += 1
        self._live[name] += 1
        return tasks[shuffled[place]]

    def give_back(self, domain: str, part: float = 1.0) -> None:
        """A task taken from `domain` came to nothing, or a `part` of it did: the domain gets that turn again."""
        self._live[domain] -= part


def discrepancy(share: float, domains: int) -> float:
    """How far, in tasks, the live tasks of a domain may be from `share` of all live tasks, when nothing was given back lately.

    There is a time t that the last domain served was due at; every domain was served when due and not before, so each has
    |n_d - share_d · t| ≤ 1/2. Summed over the K domains, |n - t| ≤ K/2, hence |n_d - share_d · n| ≤ 1/2 + share_d · K/2.
    """
    return 0.5 + share * domains / 2
