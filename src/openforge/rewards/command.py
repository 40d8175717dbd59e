"""A reward that is a program: its exit code, or the JSON on its last line."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openforge.rewards.value import RewardFailed, as_reward
from openforge.runfile.commands import base_environment, resolve_command
from openforge.types import AgentResult, Reward, Sandbox, SandboxError, Task


class CommandReward:
    """Runs the run file's `reward.command` in the agent's workspace, after the agent has ended.

    It finds the task (id, instruction, domain, data) as JSON in the file $OPENFORGE_TASK, the agent's output in the file $OPENFORGE_OUTPUT
    and its exit code in $OPENFORGE_EXIT_CODE. If the last non-empty line of its standard output is a JSON object with a "reward",
    `{"reward": number, "parts": {name: number}}`, that is the reward; else exit code 0 is 1.0 and any other 0.0.
    """

    def __init__(self, command: Sequence[str], base_dir: Path, sandbox: Sandbox, timeout: float) -> None:
        """Raises `UserError` where the program is missing."""
        self._argv = resolve_command(command, base_dir, setting="reward.command")
        self._sandbox, self._timeout = sandbox, timeout

    async def __call__(self, task: Task, result: AgentResult) -> Reward:
        """Raises `RewardFailed` where the program cannot be started, takes too long, dies by a signal or prints a reward that is none."""
        try:
            folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="openforge-reward-"))
            try:
                await asyncio.to_thread(_write, folder, task, result)
                env = base_environment(folder) | {
                    "OPENFORGE_TASK": str(folder / "task.json"),
                    "OPENFORGE_OUTPUT": str(folder / "output"),
                    "OPENFORGE_EXIT_CODE": str(result.exit_code),
                }
                ended = await self._sandbox.exec(self._argv, cwd=result.workspace or folder, env=env, timeout=self._timeout)
            finally:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        except (OSError, SandboxError) as error:
            raise RewardFailed(f"reward.command: {error}") from error
        if ended.timed_out:
            raise RewardFailed(f"the reward command took longer than {self._timeout:g} s")
        if ended.exit_code is None or ended.exit_code < 0:
            name = signal.Signals(-ended.exit_code).name if ended.exit_code else "the end of the run"
            raise RewardFailed(f"the reward command was killed by {name}")
        printed = _last_object(ended.stdout)
        return Reward(value=float(ended.exit_code == 0)) if printed is None else as_reward(printed)


def _write(folder: Path, task: Task, result: AgentResult) -> None:
    (folder / ".tmp").mkdir()
    fields = {"id": task.id, "instruction": task.instruction, "domain": task.domain, "data": task.data}
    (folder / "task.json").write_text(json.dumps(fields), encoding="utf-8")
    (folder / "output").write_text(result.output, encoding="utf-8", errors="replace")


def _last_object(stdout: bytes) -> dict[str, Any] | None:
    lines = stdout.decode(errors="replace").strip().splitlines()
    try:
        value = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return value if isinstance(value, dict) and "reward" in value else None
