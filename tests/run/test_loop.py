"""The whole loop with a tiny random model, through real HTTP and real subprocesses."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from openforge.pool import Store, UnitState
from openforge.run.metrics import read_metrics

LOOP = Path(__file__).parent / "loop"


@pytest.fixture
def run_file(tmp_path: Path, tiny_model: Path) -> Path:
    for name in ("agent.py", "rewards.py"):
        shutil.copy(LOOP / name, tmp_path)
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"instruction": f"say {word}"}) + "\n" for word in ("one", "two", "three", "four")))
    config = {
        "name": "tiny",
        "model": {"path": str(tiny_model), "format": "hermes"},
        "tasks": {"train": "tasks.jsonl", "eval": "tasks.jsonl"},
        "agent": {"command": ["python", "agent.py", "{instruction}"], "deadline": "30s"},
        "reward": {"function": "rewards.py:letters"},
        "rollout": {"concurrency": 16, "group_size": 8, "sampling": {"temperature": 1.0, "max_tokens": 16}},
        "train": {"groups_per_step": 2, "steps": 15, "learning_rate": 1e-2, "checkpoint_every": 5},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def openforge(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "openforge", *arguments], capture_output=True, text=True, check=False)


def test_reward_rises_through_real_http_and_real_processes(run_file: Path) -> None:
    result = openforge("train", str(run_file))
    assert result.returncode == 0, result.stdout + result.stderr
    run_dir = run_file.parent / "runs" / "tiny"
    rows = read_metrics(run_dir / "metrics.jsonl")
    rewards = [row["reward_mean"] for row in rows if row["kind"] == "step"]
    assert len(rewards) == 15
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2, rewards
    steps = [row for row in rows if row["kind"] == "step"]
    assert all(row["sampled_tokens"] == row["trained_tokens"] + sum(row["masked"].values()) for row in steps)
    assert all(row.get("logprob_gap", 0) <= 1e-4 for row in steps)
    assert (run_dir / "report.html").stat().st_size > 10_000
    with Store.open(run_dir / "calls.db") as store:
        assert all(rollout.outcome is not None for rollout in store.rollouts())
        assert len(store.units(state=UnitState.TRAINED)) == 30
