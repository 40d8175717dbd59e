"""What users get wrong and what breaks around them: one clear line or the right outcome, and nothing recorded is lost."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openforge.pool import Store
from openforge.types import Outcome, Rollout

Openforge = Callable[..., subprocess.CompletedProcess[str]]
WriteRun = Callable[..., Path]


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    """The one line a user's mistake ends with."""
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("openforge: ")]
    assert len(lines) == 1, result.stderr
    return lines[0]


@pytest.mark.slow
def test_mistakes_in_the_run_file_are_one_line(write_run: WriteRun, openforge: Openforge, tmp_path: Path) -> None:
    line = one_line(openforge("train", write_run(rollout={"concurency": 4})))
    assert "concurency" in line
    assert "concurrency" in line
    assert "models fetch" in one_line(openforge("train", write_run(model={"path": "models/missing"})))
    assert "no-such-agent" in one_line(openforge("train", write_run(agent={"command": ["no-such-agent"]})))
    assert "run.yaml" in one_line(openforge("train", tmp_path / "missing" / "run.yaml"))


@pytest.mark.slow
def test_a_port_in_use_is_one_line(write_run: WriteRun, openforge: Openforge) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert str(port) in one_line(openforge("train", write_run(gateway={"port": port})))


@pytest.mark.slow
def test_every_misbehaviour_ends_in_its_outcome(write_run: WriteRun, openforge: Openforge, tmp_path: Path) -> None:
    expected = {
        "crash": Outcome.AGENT_ERROR,
        "hang": Outcome.TIMEOUT,
        "flood": Outcome.FINISHED,
        "bytes": Outcome.FINISHED,
        "raise": Outcome.ENV_ERROR,
        "nan": Outcome.ENV_ERROR,
        "long": Outcome.TRUNCATED,
        "good": Outcome.FINISHED,
    }
    run_file = write_run(
        agent={"command": ["python", "unruly.py", "{instruction}"], "deadline": "8s"},
        reward={"function": "rewards.py:strict"},
        rollout={"group_size": 2},
        schedule={"policy": "fifo", "max_staleness": 0},
        train={"steps": 1, "groups_per_step": len(expected)},
        tasks={"eval": {}},
    )
    (tmp_path / "unruly.py").write_text((Path(__file__).parent / "loop" / "unruly.py").read_text())
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps({"id": how, "instruction": how}) + "\n" for how in expected))
    result = openforge("train", run_file)
    assert result.returncode == 0, result.stdout + result.stderr
    with Store.open(tmp_path / "runs" / "tiny" / "calls.db") as store:
        trained = {unit for units in store.steps().values() for unit in units}
        rollouts = [rollout for rollout in store.rollouts(split="train") if rollout.unit in trained]
        assert {rollout.task_id: rollout.outcome for rollout in rollouts} == expected
        for rollout in rollouts:
            scored = rollout.outcome in (Outcome.FINISHED, Outcome.TRUNCATED)
            assert (rollout.reward is not None) == scored, rollout
            assert bool(rollout.detail) != (rollout.outcome == Outcome.FINISHED) or rollout.outcome == Outcome.TRUNCATED
            if rollout.outcome != Outcome.TRUNCATED:
                assert store.calls(rollout.id), "the model was asked once, and that call is on record"


@pytest.mark.slow
def test_an_agent_that_never_works_stops_the_run_with_a_reason(write_run: WriteRun, openforge: Openforge) -> None:
    line = one_line(openforge("train", write_run(agent={"command": ["python", "-c", "raise SystemExit(7)"]}, tasks={"eval": {}})))
    assert "code 7" in line
    assert "agent_error" in line


@pytest.mark.slow
def test_a_corrupt_checkpoint_is_named_and_can_be_stepped_behind(write_run: WriteRun, openforge: Openforge, tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "tiny"
    assert openforge("train", write_run(train={"steps": 2, "checkpoint_every": 1}, tasks={"eval": {}})).returncode == 0
    weights = run_dir / "checkpoints" / "step-000002" / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    assert str(weights) in one_line(openforge("resume", run_dir))
    shutil.rmtree(weights.parent)
    result = openforge("resume", run_dir)
    assert result.returncode == 0, result.stdout + result.stderr
    with Store.open(run_dir / "calls.db") as store:
        units = [unit for step in store.steps().values() for unit in step]
        assert list(store.steps()) == [1, 2]
        assert len(units) == len(set(units)) == 4


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 12 MB; mounting needs root."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(disk)], capture_output=True, check=False)
    if mounted.returncode:
        if os.environ.get("OPENFORGE_REQUIRE") == "all":
            pytest.fail("mounting a tmpfs needs root")
        pytest.skip("mounting a tmpfs needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
def test_a_full_disk_stops_the_run_and_keeps_what_was_recorded(write_run: WriteRun, openforge: Openforge, small_disk: Path) -> None:
    run_file = write_run(run_dir=str(small_disk / "run"), train={"steps": 200, "checkpoint_every": 1000}, tasks={"eval": {}})
    (small_disk / "ballast").write_bytes(bytes(9_000_000))
    line = one_line(openforge("train", run_file))
    assert "No space left" in line or "full" in line
    (small_disk / "ballast").unlink()
    with Store.open(small_disk / "run" / "calls.db") as store:
        before = {call.id for rollout in store.rollouts() for call in store.calls(rollout.id)}
        assert before
    result = openforge("resume", small_disk / "run", "--set", "train.steps=2")
    assert result.returncode == 0, result.stdout + result.stderr
    with Store.open(small_disk / "run" / "calls.db") as store:
        rollouts: list[Rollout] = store.rollouts()
        assert before <= {call.id for rollout in rollouts for call in store.calls(rollout.id)}
        assert all(rollout.outcome is not None for rollout in rollouts)
