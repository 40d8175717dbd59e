"""A discrete-event simulation of a training run around the real scheduler, order of tasks and ledger of domains.

Invariant: the clock is the simulation's own and everything drawn hangs on the seed, so a run's figures are the same on every machine; and
the n-th group of a domain takes the same time under every policy.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from openforge.pool import Scheduler
from openforge.run.domains import Domains
from openforge.tasks import TaskOrder
from openforge.types import Task

Times = npt.NDArray[np.float64]

GROUP = 8
"""Rollouts a unit."""
PUBLISHED, DEADLINE = -1, -2
"""Events beside the ends of units."""


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """What rollouts are like."""

    name: str
    factor: Callable[[Times], Times]
    """Standard normal → how many times the median a rollout takes."""
    medians: Mapping[str, float]
    """Domain → median seconds of a rollout."""
    weights: Mapping[str, float]
    longest: float
    """Seconds. The agents' own deadline ends whatever would take longer."""
    hanging: float = 0.0
    """Share of rollouts that never end, not even at that deadline."""
    difficulty: float = 0.7
    """Correlation of a rollout's log duration with the difficulty, which the rollouts of a group share."""

    def groups(self, domain: str, count: int, seed: int) -> Times:
        """Seconds of the rollouts of a domain's first `count` groups, [count, GROUP]; infinite for those that hang."""
        chance = np.random.default_rng([seed, *domain.encode()])
        shared, own = chance.standard_normal((count, 1)), chance.standard_normal((count, GROUP))
        normal = self.difficulty * shared + np.sqrt(1 - self.difficulty**2) * own
        seconds = np.minimum(self.medians[domain] * self.factor(normal), self.longest)
        return np.where(chance.random((count, GROUP)) < self.hanging, np.inf, seconds)


@dataclass(kw_only=True)
class Trace:
    """What happened in one run; the lists have an entry a step."""

    began: list[float] = field(default_factory=list)
    """When the trainer got its units."""
    waited: list[float] = field(default_factory=list)
    """How long it had waited for them."""
    staleness: list[list[int]] = field(default_factory=list)
    """Of each unit."""
    seconds: list[Times] = field(default_factory=list)
    """Of the rollouts that were trained, ascending."""
    domains: list[Counter[str]] = field(default_factory=list)
    """Domain → units."""
    cut: int = 0
    """Rollouts that were cancelled in units that were trained."""
    refilled: int = 0
    """Units."""
    stuck: bool = False
    """At the end nothing could ever happen any more."""


@dataclass(frozen=True, slots=True)
class Unit:
    domain: str
    launched: float
    version: int
    seconds: Times


class Simulation:
    """`launches`: about how many units there will be."""

    def __init__(
        self, scheduler: Scheduler, world: World, *, step_seconds: float, deadline: float | None, launches: int, seed: int
    ) -> None:
        self.scheduler = scheduler
        self.order = TaskOrder([Task(id=domain, instruction="", domain=domain) for domain in world.medians], seed, weights=world.weights)
        self.ledger = Domains(self.order.shares, scheduler.window)
        self.trace = Trace()
        self.drawn = {name: world.groups(name, int(1.1 * share * launches), seed) for name, share in self.order.shares.items()}
        """Domain → seconds of its rollouts, a row a unit; one that is through begins again."""
        self._step_seconds, self._deadline = step_seconds, deadline
        self._now = self._idle_since = 0.0
        self._version = 0
        self._events: list[tuple[float, int]] = []
        self._units: dict[int, Unit] = {}
        """Outstanding; the scheduler's numbers."""
        self._timed = -1
        """The unit whose deadline was last put among the events."""

    @property
    def endless(self) -> int:
        """Outstanding units that will never end by themselves."""
        return sum(bool(np.isinf(unit.seconds).any()) for unit in self._units.values())

    def run(self, steps: int) -> Trace:
        self._launch()
        while len(self.trace.began) < steps and not self.trace.stuck:
            self._advance()
        return self.trace

    def _advance(self) -> None:
        """The next event, then what it makes possible."""
        if not self._events:
            self.trace.stuck = True
            return
        self._now, event = heapq.heappop(self._events)
        if event == PUBLISHED:
            self._version += 1
            self._idle_since = self._now
            self.scheduler.published()
        elif event in self._units and self.scheduler.runs(event):
            self.scheduler.finish(event)
        self._keep_deadline()
        self._launch()
        if not self.scheduler.training and (units := self.scheduler.take()) is not None:
            self._train(units)

    def _launch(self) -> None:
        while self.scheduler.may_launch():
            number, domain = self.scheduler.launch(), next(self.order).domain
            seconds = self.drawn[domain][self.ledger.launched[domain] % len(self.drawn[domain])]
            self.ledger.launch(number, domain)
            self._units[number] = Unit(domain, self._now, self._version, seconds)
            end = self._now + float(seconds.max())
            if end < np.inf:
                heapq.heappush(self._events, (end, number))

    def _keep_deadline(self) -> None:
        if self._deadline is None:
            return
        while (head := self.scheduler.oldest_running) is not None:
            due = self._units[head].launched + self._deadline
            if due > self._now:
                if head != self._timed:
                    heapq.heappush(self._events, (due, DEADLINE))
                    self._timed = head
                return
            ended = self._units[head].seconds <= self._now - self._units[head].launched
            verdict = self.scheduler.overdue(head, trainable=ended.sum() > 1)
            self.ledger.overdue(head, verdict)
            if verdict == "wait":
                return
            if verdict == "cut":
                self.trace.cut += int((~ended).sum())
                self._units[head] = replace(self._units[head], seconds=self._units[head].seconds[ended])
                self.scheduler.finish(head)
            else:
                self.trace.refilled += 1
                del self._units[head]
                self.order.give_back(self.ledger.evict(head, self.scheduler.next_unit))

    def _train(self, numbers: list[int]) -> None:
        units = [self._units.pop(number) for number in numbers]
        self.ledger.consume(numbers, self.scheduler.head)
        self.trace.began.append(self._now)
        self.trace.waited.append(self._now - self._idle_since)
        self.trace.staleness.append([self._version - unit.version for unit in units])
        self.trace.seconds.append(np.sort(np.concatenate([unit.seconds for unit in units])))
        self.trace.domains.append(Counter(unit.domain for unit in units))
        heapq.heappush(self._events, (self._now + self._step_seconds, PUBLISHED))
