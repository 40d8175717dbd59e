"""The run directory: made once, used by one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from openforge.run.rundir import RunDir
from openforge.types import UserError


def test_a_new_run_gets_its_folders(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "runs" / "shop")
    assert run.checkpoint(7) == tmp_path / "runs" / "shop" / "checkpoints" / "step-000007"
    assert all(folder.is_dir() for folder in (run.tensorboard, run.plots, run.logs, run.workspaces, run.checkpoint(0).parent))


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "shop")
    run.config.write_text("name: shop\n")
    with pytest.raises(UserError, match=f"openforge resume {run.path}"):
        RunDir.create(run.path)
    assert RunDir.open(run.path) == run


def test_a_start_that_failed_before_anything_was_recorded_can_be_repeated(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "shop").lock():
        pass
    RunDir.create(tmp_path / "shop")


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty and holds no run"):
        RunDir.create(tmp_path)
    with pytest.raises(UserError, match="is a file"):
        RunDir.create(tmp_path / "thesis.txt")
    with pytest.raises(UserError, match="cannot create run_dir"):
        RunDir.create(tmp_path / "thesis.txt" / "run")
    with pytest.raises(UserError, match="is not a run directory"):
        RunDir.open(tmp_path)


def test_only_complete_checkpoints_count(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "shop")
    assert run.latest_checkpoint() is None
    for name in ("step-000010", "step-000002", "step-000020.tmp", ".step-000030"):
        (run.checkpoint(0).parent / name).mkdir()
    assert [path.name for path in run.checkpoints()] == ["step-000002", "step-000010"]
    assert run.latest_checkpoint() == run.checkpoint(10)


def test_one_controller_at_a_time_even_after_a_kill(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "shop")
    hold = (
        "import pathlib, sys, time; from openforge.run.rundir import RunDir\n"
        "with RunDir(pathlib.Path(sys.argv[1])).lock(): print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", hold, str(run.path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"in use by process {other.pid}"), run.lock():
            pass
        other.kill()
    with run.lock():
        pass
