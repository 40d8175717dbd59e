"""`kill -9` at random moments: what was recorded stays, nothing is trained twice, the run reaches its end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from openforge.pool import Store, UnitState
from openforge.run.metrics import read_metrics
from openforge.types import Outcome

STEPS = 12


def steps_done(run_dir: Path) -> int:
    return sum(row["kind"] == "step" for row in read_metrics(run_dir / "metrics.jsonl"))


def kill_after(arguments: list[str], run_dir: Path, seconds: float) -> None:
    """Start the command, wait until it has made a step in this life, then `seconds` more, then kill it."""
    before = (run_dir / "metrics.jsonl").stat().st_size if run_dir.exists() else 0
    process = subprocess.Popen([sys.executable, "-m", "openforge", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    started = time.monotonic()
    while process.poll() is None and time.monotonic() - started < 90:
        if (run_dir / "metrics.jsonl").exists() and (run_dir / "metrics.jsonl").stat().st_size > before:
            break
        time.sleep(0.05)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    _, stderr = process.communicate()
    assert process.returncode in (-signal.SIGKILL, 0), stderr.decode()


@pytest.mark.slow
def test_kill_9_loses_no_call_and_trains_no_unit_twice(write_run: Callable[..., Path], tmp_path: Path) -> None:
    acknowledged = tmp_path / "acknowledged"
    run_file = write_run(
        agent={"env": {"ACKNOWLEDGED": str(acknowledged)}},
        train={"steps": STEPS, "checkpoint_every": 2, "groups_per_step": 1},
        eval={"limit": 2},
    )
    run_dir = tmp_path / "runs" / "tiny"
    random.seed(int.from_bytes(os.urandom(4)))
    for life in range(5):
        arguments = ["resume", str(run_dir)] if life else ["train", str(run_file)]
        kill_after(arguments, run_dir, random.uniform(0.0, 1.0))
    result = subprocess.run([sys.executable, "-m", "openforge", "resume", str(run_dir)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr

    with Store.open(run_dir / "calls.db") as store:
        rollouts = store.rollouts()
        recorded = {call.id for rollout in rollouts for call in store.calls(rollout.id)}
        replies = acknowledged.read_text().replace("chatcmpl-", "").split()
        assert len(replies) > 50
        assert set(replies) <= recorded, "an agent had a reply whose call is not in the log"
        assert all(rollout.outcome is not None for rollout in rollouts)
        trained = store.steps()
        assert list(trained) == list(range(1, STEPS + 1))
        units = [unit for step in trained.values() for unit in step]
        assert len(units) == len(set(units)) == STEPS
        for unit in units:
            group = store.group(unit)
            assert [rollout.index for rollout in group] == list(range(8))
            assert all(rollout.outcome != Outcome.CANCELLED for rollout in group)
        assert {unit.unit for unit in store.units(state=UnitState.TRAINED)} == set(units)
    assert [row["step"] for row in read_metrics(run_dir / "metrics.jsonl") if row["kind"] == "step"] == list(range(1, STEPS + 1))


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_says_how_to_resume(write_run: Callable[..., Path], tmp_path: Path) -> None:
    run_file = write_run(train={"steps": 200}, eval={"limit": 2})
    run_dir = tmp_path / "runs" / "tiny"
    process = subprocess.Popen(
        [sys.executable, "-m", "openforge", "train", str(run_file)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    while process.poll() is None and not steps_done(run_dir):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 130, output
    assert f"openforge resume {run_dir}" in output
    done = steps_done(run_dir)
    with Store.open(run_dir / "calls.db") as store:
        assert all(rollout.outcome is not None for rollout in store.rollouts())
        assert len(store.steps()) == done
