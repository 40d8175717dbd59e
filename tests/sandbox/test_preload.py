"""A Python program in a fork that has its imports already is the same program."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from openforge.sandbox import ProcessSandbox
from openforge.types import ExecResult, SandboxError

ENV = {"PATH": os.environ["PATH"], "X": "1", "LANG": "C.UTF-8"}


@pytest_asyncio.fixture
async def warm(tmp_path: Path) -> AsyncIterator[ProcessSandbox]:
    sandbox = ProcessSandbox(preload=["no_such_module", "httpx"])
    yield sandbox
    await sandbox.close()


async def run(sandbox: ProcessSandbox, folder: Path, code: str, *arguments: str, **options: Any) -> ExecResult:
    script = folder / "app" / "agent.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text(code)
    return await sandbox.exec([sys.executable, str(script), *arguments], cwd=folder, env=options.pop("env", ENV), **options)


STATE = """
import sys
warm = "httpx" in sys.modules
import json, os, random, signal, threading
print(json.dumps({
    "argv": sys.argv, "name": __name__, "file": __file__, "main": sys.modules["__main__"].__dict__ is globals(), "env": dict(os.environ),
    "globals": sorted(name for name in globals() if not name.startswith("__")), "cwd": os.getcwd(),
    "path": sys.path, "stdin": sys.stdin.read(),
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1], "executable": sys.executable,
    "signals": [str(signal.getsignal(n)) for n in range(1, 32)], "threads": threading.active_count(), "encoding": sys.stdout.encoding,
    "session": os.getsid(0) == os.getpid(),
}))
print(warm, random.random(), file=sys.stderr)
"""


async def test_it_sees_what_it_would_see_newly_executed(warm: ProcessSandbox, sandbox: ProcessSandbox, tmp_path: Path) -> None:
    forked, executed = [await run(box, tmp_path, STATE, "--task", "{ü}") for box in (warm, sandbox)]
    assert (forked.exit_code, executed.exit_code) == (0, 0), forked.stderr
    seen, expected = json.loads(forked.stdout), json.loads(executed.stdout)
    for state in (seen, expected):
        state["env"].pop("LC_CTYPE", None)
        assert [part for part in state["path"] if "openforge/sandbox" in part] == []
        state["path"] = state["path"][0], sorted(set(state["path"]))
    assert seen == expected
    assert forked.stderr.startswith(b"True ")
    assert executed.stderr.startswith(b"False ")


async def test_chance_differs_between_programs(warm: ProcessSandbox, tmp_path: Path) -> None:
    code = "import random, numpy; print(random.random(), numpy.random.random())"
    assert (await run(warm, tmp_path, code)).stdout != (await run(warm, tmp_path, code)).stdout


@pytest.mark.parametrize(
    ("code", "exit_code", "stdout", "stderr"),
    [
        ("import sys; print('no newline', end=''); sys.exit(3)", 3, b"no newline", b""),
        ("import sys; sys.exit('a reason')", 1, b"", b"a reason\n"),
        ("raise KeyError('lost')", 1, b"", b"KeyError: 'lost'\n"),
        ("def f(:", 1, b"", b"SyntaxError: invalid syntax\n"),
        ("import atexit; atexit.register(print, 'bye')", 0, b"bye\n", b""),
        ("import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()", 0, b"late\n", b""),
        ("import os; os.abort()", -6, b"", b""),
        ("import neighbour; print(neighbour.VALUE)", 0, b"42\n", b""),
    ],
)
async def test_it_ends_as_it_would(warm: ProcessSandbox, tmp_path: Path, code: str, exit_code: int, stdout: bytes, stderr: bytes) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "neighbour.py").write_text("VALUE = 42")
    ended = await run(warm, tmp_path, code)
    assert (ended.exit_code, ended.stdout) == (exit_code, stdout)
    assert ended.stderr.endswith(stderr)
    assert not stderr or stderr.startswith(b"a reason") or b"agent.py" in ended.stderr


async def test_its_deadline_holds(warm: ProcessSandbox, tmp_path: Path) -> None:
    ended = await run(warm, tmp_path, "import time; print('on', flush=True); time.sleep(60)", timeout=3.0)
    assert (ended.timed_out, ended.stdout) == (True, b"on\n")


async def test_variables_that_change_python_are_obeyed(warm: ProcessSandbox, tmp_path: Path) -> None:
    ended = await run(warm, tmp_path, "import sys; print(sys.flags.dev_mode, 'httpx' in sys.modules)", env={**ENV, "PYTHONDEVMODE": "1"})
    assert ended.stdout == b"True False\n"


async def test_a_script_that_is_gone(warm: ProcessSandbox, tmp_path: Path) -> None:
    ended = await warm.exec([sys.executable, str(tmp_path / "gone.py")], cwd=tmp_path, env=ENV)
    assert ended.exit_code == 1
    assert b"gone.py" in ended.stderr
    with pytest.raises(SandboxError, match="missing"):
        await warm.exec([sys.executable, str(tmp_path / "gone.py")], cwd=tmp_path / "missing", env=ENV)


async def test_a_killed_fork_server_is_started_again(warm: ProcessSandbox, tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    assert (await run(warm, tmp_path, "print(1)")).stdout == b"1\n"
    (server,) = set(psutil.Process().children()) - before
    running = asyncio.create_task(run(warm, tmp_path, "import time; time.sleep(0.5); print(2)"))
    await asyncio.sleep(0.2)
    server.kill()
    await asyncio.sleep(0.1)
    assert (await warm.exec(["echo", "3"], cwd=tmp_path, env=ENV)).stdout == b"3\n"
    assert (await running).stdout == b"2\n"
