"""The whole loop with a tiny random model, through real HTTP and real subprocesses."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest

from openforge.pool import Store, UnitState
from openforge.run.metrics import read_metrics

Openforge = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.slow
def test_reward_rises_through_real_http_and_real_processes(write_run: Callable[..., Path], openforge: Openforge) -> None:
    run_file = write_run()
    result = openforge("train", run_file)
    assert result.returncode == 0, result.stdout + result.stderr
    run_dir = run_file.parent / "runs" / "tiny"
    steps = [row for row in read_metrics(run_dir / "metrics.jsonl") if row["kind"] == "step"]
    rewards = [row["reward_mean"] for row in steps]
    assert len(rewards) == 15
    assert fmean(rewards[-3:]) > fmean(rewards[:3]) + 0.2, rewards
    assert all(row["sampled_tokens"] == row["trained_tokens"] + sum(row["masked"].values()) for row in steps)
    gaps = [row["logprob_gap"] for row in steps if row.get("logprob_gap") is not None]
    assert gaps
    assert max(gaps) <= 1e-4
    assert (run_dir / "report.html").stat().st_size > 10_000
    assert not any((run_dir / "workspaces").iterdir())
    with Store.open(run_dir / "calls.db") as store:
        assert all(rollout.outcome is not None for rollout in store.rollouts())
        assert len(store.units(state=UnitState.TRAINED)) == 30
