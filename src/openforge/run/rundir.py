"""Names everything in a run directory, and lets one controller at a time use it.

Invariant: a run directory is created once and never overwritten; whoever writes into it holds its lock.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from openforge.types import UserError


@dataclass(frozen=True, slots=True)
class RunDir:
    """The layout of one run's directory. Making the object touches no file."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved run file."""
        return self.path / "config.yaml"

    @property
    def database(self) -> Path:
        """The pool's SQLite database: calls, rollouts, units, steps."""
        return self.path / "calls.db"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    def checkpoint(self, step: int) -> Path:
        """The folder of the checkpoint written after optimizer step `step`."""
        return self.path / "checkpoints" / f"step-{step:06d}"

    def checkpoints(self) -> list[Path]:
        """The complete checkpoints, oldest first: a folder gets its name only when all its files are written."""
        return sorted(path for path in self.checkpoint(0).parent.glob("step-*") if path.name.removeprefix("step-").isdigit())

    def latest_checkpoint(self) -> Path | None:
        return next(reversed(self.checkpoints()), None)

    @property
    def stalls(self) -> Path:
        """What every unit waited for, each time the trainer waited for long."""
        return self.path / "stalls.log"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def plots(self) -> Path:
        return self.path / "plots"

    @property
    def logs(self) -> Path:
        """Standard output and error of agents, a folder a rollout."""
        return self.path / "logs"

    @property
    def workspaces(self) -> Path:
        """Where agents work, a folder a rollout; removed as each rollout ends."""
        return self.path / "workspaces"

    @classmethod
    def create(cls, path: Path) -> RunDir:
        """Make the folders of a new run; a directory with anything in it is refused, so that no recorded run is ever overwritten."""
        run = cls(path.absolute())
        if run.config.exists():
            raise UserError(f"{path} holds a run already: continue it with `openforge resume {path}`, or set another `run_dir`")
        if path.exists() and not path.is_dir():
            raise UserError(f"run_dir {path} is a file: set another `run_dir`")
        if path.is_dir() and any(child.is_file() and child.name != "lock" for child in path.rglob("*")):
            raise UserError(f"run_dir {path} is not empty and holds no run: set another `run_dir`, or empty it")
        try:
            for folder in (run.tensorboard, run.checkpoint(0).parent, run.plots, run.logs, run.workspaces):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot create run_dir {path}: {error.strerror}") from error
        return run

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """An existing run."""
        run = cls(path.absolute())
        if not run.config.is_file():
            raise UserError(f"{path} is not a run directory (it has no config.yaml): give the `run_dir` of an `openforge train`")
        return run

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the directory; a second controller gets a `UserError`. The kernel drops the lock when the process dies, however it dies."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(descriptor, 32).decode().strip() or "unknown"
                raise UserError(f"{self.path} is in use by process {holder}: wait for it, or stop it first") from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)
