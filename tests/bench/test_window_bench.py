"""The benchmark of the window on small queues: deterministic, and lawful."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openforge.bench import window, window_plot
from openforge.bench.frame import BenchResult
from openforge.bench.simulation import Simulation
from openforge.bench.window import LONGEST, WORLDS, Plan, wasserstein
from openforge.pool import Scheduler
from openforge.pool.scheduler import Policy

PLAN = Plan(queue=64, per_step=8, steps=30, warm=8, paces=(1.0, 0.5))


@pytest.fixture(scope="module")
def result() -> BenchResult:
    return window.run(None, 1, PLAN)


def row_of(result: BenchResult, **wanted: Any) -> dict[str, Any]:
    (row,) = (row for row in result.rows if all(row[name] == value for name, value in wanted.items()))
    return row


def test_the_same_seeds_give_the_same_figures(result: BenchResult) -> None:
    assert window.run(None, 1, PLAN) == result
    assert {bar.name for bar in result.bars} == {"throughput_vs_greedy", "shift_vs_fifo"}


def test_no_run_exceeds_its_bound_and_greedy_has_none(result: BenchResult) -> None:
    assert all(row["staleness_max"] <= row["bound"] for row in result.rows if row["policy"] != "greedy")
    assert all(row["bound"] is None for row in result.rows if row["policy"] == "greedy")


def test_one_hanging_rollout_stops_a_window_without_a_deadline_and_no_other(result: BenchResult) -> None:
    hanging = {"hanging": 0.01, "policy": "windowed"}
    assert row_of(result, **hanging, on_deadline="")["utilisation"] == 0.0
    for verdict in ("cut", "refill"):
        row = row_of(result, **hanging, on_deadline=verdict)
        assert row["steps"] == PLAN.steps
        assert row["cut" if verdict == "cut" else "refilled"] > 0


@pytest.mark.parametrize(("policy", "share"), [("fifo", 1.0), ("windowed", 0.25), ("windowed", 0.5)])
def test_the_trainer_never_waits_for_rollouts_that_fit_into_its_patience(policy: Policy, share: float) -> None:
    """S + floor((W - 1) / P) steps, and no less: docs/training.md."""
    waits = {}
    for slack in (1.0, 0.8):
        scheduler = Scheduler(policy, 64, share, 8)
        assert scheduler.window is not None
        step = LONGEST / (64 // 8 - 1 + (scheduler.window - 1) // 8) * slack
        trace = Simulation(scheduler, WORLDS["log-normal"], step_seconds=step, deadline=None, launches=2000, seed=0).run(150)
        waits[slack] = max(trace.waited[16:])  # the first queueful was launched at one moment
    assert waits[1.0] < 1e-6
    assert waits[0.8] > 0


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=50), st.floats(0, 1e3))
def test_a_sample_moved_is_as_far_away_as_it_was_moved(values: list[float], by: float) -> None:
    sample = np.sort(np.array(values))
    assert wasserstein(sample, sample) == 0
    assert wasserstein(sample + by, sample) == pytest.approx(by)


def test_the_picture_is_drawn(result: BenchResult, tmp_path: Path) -> None:
    window_plot.draw(result, tmp_path / "window.svg")
    assert (tmp_path / "window.svg").stat().st_size > 10_000
