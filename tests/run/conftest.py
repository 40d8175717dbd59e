"""A small run: the tiny model, an agent of the standard library, four tasks, a reward that a random model gets some of."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

LOOP = Path(__file__).parent / "loop"


@pytest.fixture
def write_run(tmp_path: Path, tiny_model: Path) -> Callable[..., Path]:
    """`write_run(train={"steps": 3}, …)` writes a run file with these sections changed, and all it names; returns its path."""

    def write(**changes: Any) -> Path:
        for name in ("agent.py", "rewards.py"):
            shutil.copy(LOOP / name, tmp_path)
        tasks = [{"id": word, "instruction": f"say {word}"} for word in ("one", "two", "three", "four")]
        (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
        config: dict[str, Any] = {
            "name": "tiny",
            "model": {"path": str(tiny_model), "format": "hermes"},
            "tasks": {"train": "tasks.jsonl", "eval": "tasks.jsonl"},
            "agent": {"command": ["python", "agent.py", "{instruction}"], "deadline": "30s"},
            "reward": {"function": "rewards.py:letters"},
            # float32 by name: by default a processor with bfloat16 units would compute other numbers
            "rollout": {"concurrency": 16, "group_size": 8, "dtype": "float32", "sampling": {"temperature": 1.0, "max_tokens": 16}},
            "train": {"groups_per_step": 2, "steps": 15, "learning_rate": 1e-2, "checkpoint_every": 5, "dtype": "float32"},
        }
        for section, change in changes.items():
            config[section] = {**config.get(section, {}), **change} if isinstance(change, dict) else change
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(config))
        return path

    return write


@pytest.fixture
def openforge() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command in a process of its own."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "openforge", *map(str, arguments)], capture_output=True, text=True, check=False)

    return run
