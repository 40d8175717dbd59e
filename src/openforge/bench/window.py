"""What the window costs and what it saves: the real scheduler in simulated runs, windowed against strict order and against none.

A run has a queue of 8192 groups of 8 rollouts and a trainer that takes 512 a step. Rollouts take seconds to hours, log-normal or Pareto,
by domain (the slowest a hundred times the fastest) and by a difficulty that a group shares; the agents' own deadline ends all at 4 hours.
Nothing here hangs on the machine: the same seeds give the same figures.

Figures are of the steps after the first `WARM`, when the queue is mixed through; `early` ones of the first queueful of steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from openforge.bench.frame import BenchResult, at_least, at_most
from openforge.bench.simulation import GROUP, Simulation, Times, Trace, World
from openforge.pool import Scheduler
from openforge.pool.scheduler import OnDeadline, Policy

QUEUE, PER_STEP = 8192, 512
STEPS, WARM = 100, 40
EARLY = QUEUE // PER_STEP
LONGEST = 4 * 3600.0
MEDIANS = {"qa": 10.0, "reasoning": 60.0, "code agent": 300.0, "general agent": 1000.0}
WEIGHTS = {"qa": 0.2, "reasoning": 0.3, "code agent": 0.3, "general agent": 0.2}
TAIL = 1.5
"""Pareto's index: the variance is infinite."""
PATIENCE = EARLY - 1 + (int(0.3 * QUEUE) - 1) // PER_STEP
"""Steps that the trainer takes at least, with a window of 0.3, before it has to wait for any one unit (docs/training.md)."""
SIZED = LONGEST / PATIENCE
"""Seconds a step, such that the longest rollout fits into that."""

_NORMAL = np.linspace(-6.0, 6.0, 2401)
_PARETO = np.array([(2 * NormalDist().cdf(-z)) ** (-1 / TAIL) for z in _NORMAL])
WORLDS = {
    "log-normal": World("log-normal", np.exp, MEDIANS, WEIGHTS, LONGEST),
    "Pareto": World("Pareto", lambda normal: np.interp(normal, _NORMAL, _PARETO), MEDIANS, WEIGHTS, LONGEST),
}


@dataclass(frozen=True, slots=True)
class Case:
    world: World
    policy: Policy
    window: float = 1.0
    """Of the queue; the other policies have their own."""
    step_seconds: float = SIZED
    deadline: float | None = None
    on_deadline: OnDeadline = "wait"

    @property
    def setting(self) -> tuple[str, float, float]:
        """What the policies are compared in."""
        return self.world.name, self.world.hanging, self.step_seconds


@dataclass(frozen=True, slots=True)
class Plan:
    """What is simulated."""

    queue: int = QUEUE
    per_step: int = PER_STEP
    steps: int = STEPS
    warm: int = WARM
    paces: Sequence[float] = (1.25, 1.0, 0.75, 0.5)
    """Seconds a step, as parts of `SIZED`."""


POLICIES: tuple[tuple[Policy, float], ...] = (("fifo", 1.0), ("windowed", 0.1), ("windowed", 0.3), ("windowed", 0.5), ("greedy", 1.0))


def cases(paces: Sequence[float]) -> list[Case]:
    """Every policy at every pace; hanging rollouts with and without a head deadline; and a deadline where the steps are too short."""
    found = [Case(world, policy, window, pace * SIZED) for pace in paces for world in WORLDS.values() for policy, window in POLICIES]
    hanging = replace(WORLDS["log-normal"], hanging=0.01)
    found += [
        Case(hanging, "fifo", deadline=LONGEST, on_deadline="cut"),
        Case(hanging, "windowed", 0.3),
        Case(hanging, "windowed", 0.3, deadline=LONGEST, on_deadline="refill"),
        Case(hanging, "windowed", 0.3, deadline=LONGEST, on_deadline="cut"),
        Case(hanging, "greedy"),
        Case(hanging, "greedy", deadline=LONGEST, on_deadline="cut"),
    ]
    short = paces[-1] * SIZED
    return found + [
        Case(WORLDS["log-normal"], "windowed", 0.3, short, deadline=PATIENCE * short, on_deadline=verdict) for verdict in ("refill", "cut")
    ]


def run(model: Path | None, repeats: int = 3, plan: Plan | None = None) -> BenchResult:
    """Simulate with seeds 0 … `repeats` - 1; figures are their means, largest and longest ones the largest. `model` plays no part."""
    plan = plan or Plan()
    work = [(case, seed) for case in cases(plan.paces) for seed in range(repeats)]
    figures: dict[Case, list[dict[str, Any]]] = {}
    for case, seed in track(work, "simulating", console=Console(stderr=True), transient=True):
        figures.setdefault(case, []).append(_figures(case, plan, seed))
    rows = _compared({case: _together(each) for case, each in figures.items()})
    sized = [row for row in rows if row["window"] == 0.3 and row["pace"] == 1.0 and not row["hanging"]]
    bars = [
        at_least("throughput_vs_greedy", min(row["vs_greedy"] for row in sized), 0.95),
        at_most("shift_vs_fifo", max(row["vs_fifo"] for row in sized), 1.1),
    ]
    return BenchResult("window", rows, bars, SHOWN)


SHOWN = (
    *("durations", "pace", "hanging", "policy", "window", "on_deadline", "utilisation", "vs_greedy", "staleness_p99", "staleness_max"),
    *("bound", "shift_s", "vs_fifo", "shift_domains", "early_shift_s", "longest_stall_s", "cut", "refilled", "steps"),
)


def _figures(case: Case, plan: Plan, seed: int) -> dict[str, Any]:
    scheduler = Scheduler(case.policy, plan.queue, case.window, plan.per_step, on_deadline=case.on_deadline)
    launches = plan.queue + plan.per_step * plan.steps
    simulation = Simulation(scheduler, case.world, step_seconds=case.step_seconds, deadline=case.deadline, launches=launches, seed=seed)
    trace = simulation.run(plan.steps)
    launched = np.sort(np.concatenate([drawn[: simulation.ledger.launched[name]].ravel() for name, drawn in simulation.drawn.items()]))
    shifts = [wasserstein(seconds, launched[np.isfinite(launched)]) for seconds in trace.seconds]
    mixes = [_variation(counts, simulation.ledger.launched) for counts in trace.domains]
    warm = plan.warm if len(trace.began) > plan.warm + 1 else 0
    staleness = np.concatenate(trace.staleness[warm:])
    early = plan.queue // plan.per_step
    return {
        "utilisation": _utilisation(trace, warm, case.step_seconds),
        "staleness_mean": float(staleness.mean()),
        "staleness_p99": float(np.percentile(staleness, 99)),
        "staleness_max": int(max(map(max, trace.staleness))),
        "bound": scheduler.staleness_bound,
        "shift_s": float(np.mean(shifts[warm:])),
        "shift_domains": float(np.mean(mixes[warm:])),
        "early_shift_s": float(np.mean(shifts[:early])),
        "early_shift_domains": float(np.mean(mixes[:early])),
        "longest_stall_s": max(trace.waited[warm:]),
        "first_step_s": trace.began[0],
        "cut": trace.cut / (GROUP * launches),
        "refilled": trace.refilled / launches,
        "steps": len(trace.began),
        "stuck_slots": simulation.endless / plan.queue,
    }


def wasserstein(few: Times, many: Times) -> float:
    """The 1-Wasserstein distance of two samples, both ascending: the mean distance of their quantiles.

    `many` is read at 4 quantiles for every one of `few`.
    """
    at = (np.arange(4 * len(few)) + 0.5) / (4 * len(few))
    return float(np.abs(np.repeat(few, 4) - many[(at * len(many)).astype(int)]).mean())


def _variation(part: Mapping[str, int], whole: Mapping[str, int]) -> float:
    """Total variation of two mixes, given as counts."""
    return sum(abs(part.get(name, 0) / sum(part.values()) - count / sum(whole.values())) for name, count in whole.items()) / 2


def _utilisation(trace: Trace, warm: int, step_seconds: float) -> float:
    """The share of its time that the trainer trains; 0 where it waits for ever."""
    if trace.stuck:
        return 0.0
    return (len(trace.began) - 1 - warm) * step_seconds / (trace.began[-1] - trace.began[warm])


def _together(figures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of several seeds as one row."""

    def joined(name: str) -> Any:
        values = [each[name] for each in figures]
        if values[0] is None:
            return None
        return max(values) if name in ("staleness_max", "longest_stall_s", "bound", "steps") else float(np.mean(values))

    return {name: joined(name) for name in figures[0]}


def _compared(figures: Mapping[Case, dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows, with each policy beside the others in the same setting; throughput is in steps an hour."""
    plain = {(case.setting, case.policy): row for case, row in figures.items() if case.deadline is None or case.world.hanging}
    rows = []
    for case, row in figures.items():
        fifo, greedy = plain[case.setting, "fifo"], plain[case.setting, "greedy"]
        named = {
            "durations": case.world.name,
            "step_s": case.step_seconds,
            "pace": case.step_seconds / SIZED,
            "hanging": case.world.hanging,
            "policy": case.policy,
            "window": case.window if case.policy == "windowed" else None,
            "on_deadline": case.on_deadline if case.deadline else "",
            "deadline_s": case.deadline,
        }
        throughput = {"throughput": row["utilisation"] * 3600 / case.step_seconds}
        ratios = {"vs_greedy": row["utilisation"] / greedy["utilisation"], "vs_fifo": row["shift_s"] / fifo["shift_s"]}
        rows.append({**named, **throughput, **row, **ratios})
    return rows
