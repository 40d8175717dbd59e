"""What a command may do, and what is left of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from openforge.sandbox import ProcessSandbox
from openforge.types import SandboxError

ENV = {"PATH": os.environ["PATH"]}

# A TERM-ignoring child in a group of its own and a daemon: double fork, new session, empty environment, closed output.
FAMILY = """
import os, signal, sys, time
DAEMON = "import os, time; open('pid-daemon', 'w').write(f'{os.getpid()}\\\\n'); time.sleep(1000)"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def stay(name):
    open(f"pid-{name}", "w").write(f"{os.getpid()}\\n")
    time.sleep(1000)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 3)
        os.execve(sys.executable, [sys.executable, "-c", DAEMON], {})
    os._exit(0)
if os.fork() == 0:
    os.setpgid(0, 0)
    stay("child")
"""
WAIT_FOR_FAMILY = "while not all(os.path.exists(f'pid-{n}') for n in ('daemon', 'child')): time.sleep(0.01)\n"


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pids_in(folder: Path) -> list[int]:
    return [int(text) for path in folder.glob("pid-*") if (text := path.read_text()).endswith("\n")]


async def family_in(folder: Path, count: int) -> list[int]:
    while len(pids_in(folder)) < count:  # noqa: ASYNC110 (other processes, no event)
        await asyncio.sleep(0.02)
    return pids_in(folder)


async def all_dead(pids: list[int]) -> bool:
    for _ in range(500):
        if not any(map(alive, pids)):
            return True
        await asyncio.sleep(0.02)
    return False


async def test_a_command_sees_its_own_environment_folder_and_an_empty_stdin(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    code = "import os, sys; print(sorted(os.environ), os.getcwd(), repr(sys.stdin.read())); print('to err', file=sys.stderr)"
    ended = await sandbox.exec([sys.executable, "-c", code], cwd=tmp_path, env={"LC_ALL": "C", "X": "ü\udcff"})
    assert ended.exit_code == 0
    assert ended.stdout.decode() == f"['LC_ALL', 'X'] {tmp_path} ''\n"
    assert ended.stderr == b"to err\n"
    assert not ended.timed_out


@pytest.mark.parametrize(("code", "exit_code"), [("exit 3", 3), ("kill -SEGV $$", -signal.SIGSEGV), ("kill 0", -signal.SIGTERM)])
async def test_an_exit_is_told_as_it_was(sandbox: ProcessSandbox, tmp_path: Path, code: str, exit_code: int) -> None:
    assert (await sandbox.exec(["sh", "-c", code], cwd=tmp_path, env=ENV)).exit_code == exit_code


async def test_signals_ignored_by_the_controller_are_not_handed_down(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    ended = await sandbox.exec(["grep", "SigIgn", "/proc/self/status"], cwd=tmp_path, env=ENV)
    # Signals 32 and 33 are the C library's own: no program can set them, and one started by make has them ignored.
    assert int(ended.stdout.split()[1], 16) & 0x7FFF_FFFF == 0


async def test_bytes_that_are_not_utf8_arrive_as_they_are(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    data = bytes(range(256)) * 100
    (tmp_path / "data").write_bytes(data)
    assert (await sandbox.exec(["cat", "data"], cwd=tmp_path, env=ENV)).stdout == data


async def test_a_flood_is_bounded_in_memory_and_on_disk(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    code = "import sys\nsys.stdout.write('first\\n' + 'x' * 50_000_000 + '\\nlast\\n')\nsys.stderr.write('e' * 200_000)"
    ended = await sandbox.exec([sys.executable, "-c", code], cwd=tmp_path, env=ENV, timeout=60, log_dir=tmp_path / "logs")
    assert ended.exit_code == 0
    assert ended.stdout.startswith(b"first\nxxx")
    assert ended.stdout.endswith(b"xxx\nlast\n")
    total, kept = 50_000_012, 2 * 65536
    assert b"\n[... %d bytes dropped ...]\n" % (total - kept) in ended.stdout
    assert len(ended.stdout) < kept + 64
    log = (tmp_path / "logs" / "stdout.log").read_bytes()
    assert len(log) < 4 * 2**20 + 65536 + 64
    assert log.startswith(b"first\nxxx")
    assert log.endswith(b"xxx\nlast\n")
    assert b"bytes dropped" in log
    assert (tmp_path / "logs" / "stderr.log").read_bytes() == b"e" * 200_000


async def test_output_just_at_the_bound_is_whole(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    ended = await sandbox.exec(["head", "-c", str(2 * 65536), "/dev/zero"], cwd=tmp_path, env=ENV)
    assert ended.stdout == bytes(2 * 65536)


async def test_a_log_on_a_full_disk_does_not_fail_the_command(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    (tmp_path / "stdout.log").symlink_to("/dev/full")
    ended = await sandbox.exec(["echo", "hello"], cwd=tmp_path, env=ENV, log_dir=tmp_path)
    assert (ended.exit_code, ended.stdout) == (0, b"hello\n")


async def test_an_orphan_that_holds_the_output_does_not_delay_the_end(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    ended = await asyncio.wait_for(sandbox.exec(["sh", "-c", "sleep 1000 & echo done"], cwd=tmp_path, env=ENV), 20)
    assert (ended.exit_code, ended.stdout) == (0, b"done\n")


async def test_after_the_end_the_family_is_dead(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    ended = await sandbox.exec([sys.executable, "-c", FAMILY + WAIT_FOR_FAMILY + "sys.exit(5)"], cwd=tmp_path, env=ENV)
    pids = await family_in(tmp_path, 2)
    assert ended.exit_code == 5
    assert not any(map(alive, pids))


async def test_after_the_timeout_the_family_is_dead(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    code = FAMILY + WAIT_FOR_FAMILY + "print('here', flush=True); stay('main')"
    ended = await sandbox.exec([sys.executable, "-c", code], cwd=tmp_path, env=ENV, timeout=1.5)
    assert (ended.exit_code, ended.timed_out, ended.stdout) == (None, True, b"here\n")
    assert ended.seconds >= 1.5
    pids = pids_in(tmp_path)
    assert len(pids) == 3
    assert not any(map(alive, pids))


async def test_a_flooding_command_still_meets_its_deadline(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    ended = await asyncio.wait_for(sandbox.exec(["yes"], cwd=tmp_path, env=ENV, timeout=0.3), 20)
    assert ended.timed_out


async def test_after_cancellation_the_family_is_dead(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    task = asyncio.create_task(sandbox.exec([sys.executable, "-c", FAMILY + "stay('main')"], cwd=tmp_path, env=ENV))
    pids = await family_in(tmp_path, 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(map(alive, pids))


async def test_closing_the_sandbox_ends_what_runs(tmp_path: Path) -> None:
    sandbox = ProcessSandbox()
    task = asyncio.create_task(sandbox.exec([sys.executable, "-c", FAMILY + "stay('main')"], cwd=tmp_path, env=ENV))
    pids = await family_in(tmp_path, 3)
    await sandbox.close()
    assert not any(map(alive, pids))
    assert (await task).exit_code is None


PARENT = """
import asyncio, os, sys
from pathlib import Path
from openforge.sandbox import ProcessSandbox
async def main():
    folder, argv = Path(sys.argv[1]), [sys.executable, "-c", sys.argv[2]]
    await asyncio.gather(*(ProcessSandbox().exec(argv, cwd=folder / str(i), env={}) for i in range(2)))
asyncio.run(main())
"""


async def test_kill_9_of_the_controller_leaves_nothing(tmp_path: Path) -> None:
    for index in range(2):
        (tmp_path / str(index)).mkdir()
    parent = subprocess.Popen([sys.executable, "-c", PARENT, tmp_path, FAMILY + "stay('main')"])  # noqa: ASYNC220
    pids = [pid for index in range(2) for pid in await family_in(tmp_path / str(index), 3)]
    assert all(map(alive, pids))
    parent.kill()
    parent.wait()
    assert await all_dead(pids)


async def test_a_thread_that_ends_takes_no_command_with_it(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    def start() -> None:
        codes.append(asyncio.run(_sleep_elsewhere(tmp_path)))

    codes: list[int | None] = []
    thread = threading.Thread(target=start)
    thread.start()
    ended = await sandbox.exec(["sleep", "0.5"], cwd=tmp_path, env=ENV)
    thread.join()
    assert (ended.exit_code, codes) == (0, [0])


async def _sleep_elsewhere(folder: Path) -> int | None:
    return (await ProcessSandbox().exec(["sleep", "0.05"], cwd=folder, env=ENV)).exit_code


async def test_a_command_that_kills_its_supervisor_is_a_sandbox_error_and_dies(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    code = "echo $$ > pid-main; sleep 1000 & echo $! > pid-child; kill -9 $PPID; sleep 1000"
    with pytest.raises(SandboxError, match="supervisor"):
        await sandbox.exec(["sh", "-c", code], cwd=tmp_path, env=ENV)
    assert await all_dead(await family_in(tmp_path, 2))


@pytest.mark.parametrize(
    ("argv", "cwd", "message"),
    [
        (["no-such-program"], ".", "no-such-program.*No such file"),
        (["true"], "missing", "No such file.*missing"),
        (["/etc/passwd"], ".", "Permission denied"),
        (["echo", "nul\0"], ".", "Invalid argument"),
        (["echo", "x" * 200_000], ".", "Argument list too long"),
    ],
)
async def test_what_cannot_be_started_says_why(sandbox: ProcessSandbox, tmp_path: Path, argv: list[str], cwd: str, message: str) -> None:
    with pytest.raises(SandboxError, match=message):
        await sandbox.exec(argv, cwd=tmp_path / cwd, env=ENV)


async def test_fifty_at_once(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    ended = await asyncio.gather(*(sandbox.exec(["echo", str(i)], cwd=tmp_path, env=ENV) for i in range(50)))
    assert [int(one.stdout) for one in ended] == list(range(50))


async def test_nothing_is_left_open(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(psutil.Process().children())

    await sandbox.exec(["true"], cwd=tmp_path, env=ENV)
    before = held()
    for _ in range(5):
        await sandbox.exec(["true"], cwd=tmp_path, env=ENV)
    assert held() == before
