"""Installs real agents from their registries, each into a folder of its own, since their dependencies conflict.

Invariant: an agent counts as installed only in exactly the packages its adapter names, and only after its program was seen to run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from openforge.agents.adapters.base import Adapter
from openforge.runfile.commands import base_environment
from openforge.types import UserError

_QUIET = {"npm_config_update_notifier": "false", "npm_config_fund": "false", "npm_config_audit": "false"}


def agents_folder() -> Path:
    """Where agents are installed: $OPENFORGE_AGENTS, else `openforge/agents` in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("OPENFORGE_AGENTS") or cache / "openforge" / "agents")


@dataclass(frozen=True, slots=True)
class Installation:
    """One agent's place below the agents' folder, whether or not anything is there yet."""

    adapter: Adapter
    root: Path

    @property
    def folder(self) -> Path:
        return self.root.absolute() / self.adapter.name

    @property
    def programs(self) -> Path:
        """The folder that leads the agent's PATH."""
        return self.folder / ("node_modules/.bin" if self.adapter.registry == "npm" else "bin")

    @property
    def program(self) -> Path:
        return self.programs / self.adapter.program

    @property
    def _record(self) -> Path:
        return self.folder / "installed.json"

    @property
    def complete(self) -> bool:
        """Whether exactly these packages are installed and were seen to work."""
        return self._record.is_file() and json.loads(self._record.read_text()) == list(self.adapter.packages)

    def install(self) -> None:
        """From the registry, over whatever is there. Raises `UserError`."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        if self.adapter.registry == "npm":
            if shutil.which("npm") is None:
                raise UserError(f"agents: {self.adapter.name} comes from npm, which is not on PATH: install Node.js (Debian: nodejs npm)")
            self._run(["npm", "install", "--prefix", str(self.folder), "--no-save", "--omit=dev", *self.adapter.packages])
        else:
            self._run([sys.executable, "-m", "venv", str(self.folder)])
            pip = [str(self.programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
            self._run([*pip, *self.adapter.packages])
        self._probe()
        self._record.write_text(json.dumps(self.adapter.packages))

    def _probe(self) -> None:
        with TemporaryDirectory(prefix="openforge-") as home:
            Path(home, ".tmp").mkdir()
            env = base_environment(Path(home))
            self._run([str(self.program), *self.adapter.probe], env | {"PATH": f"{self.programs}{os.pathsep}{env['PATH']}"}, cwd=home)

    def _run(self, argv: list[str], env: dict[str, str] | None = None, cwd: str | None = None) -> None:
        done = subprocess.run(
            argv,
            env=os.environ | _QUIET if env is None else env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
            raise UserError(f"agents: {self.adapter.name}: `{Path(argv[0]).name}` failed: {' '.join(lines[-3:])[:500]}")
