"""The sandbox that is none: plain processes on this machine, without isolation, but with a certain end.

Invariant: when `exec` returns or raises, nothing the command started is alive; when this process dies, even by `kill -9`, nothing that runs
survives it for long. Each command has a supervisor process of its own (see `supervisor.py`), which does the work; here is only the
conversation with it. The supervisor's start-up, one bare Python interpreter, is what an `exec` costs.
"""

from __future__ import annotations

import asyncio
import marshal
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from openforge.sandbox.supervisor import KILL_SECONDS, frame
from openforge.types import ExecResult, SandboxError

_START = [
    sys.executable,
    "-I",
    "-S",
    "-c",
    f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import supervisor; supervisor.main()",
]


class ProcessSandbox:
    """`types.Sandbox` on plain processes. Needs Linux."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[ExecResult], asyncio.StreamWriter] = {}

    async def exec(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float | None = None, log_dir: Path | None = None
    ) -> ExecResult:
        """Run `argv` with exactly the environment `env`, standard input empty, and `timeout` in wall-clock seconds.

        Of each stream the result holds the first and the last 64 KiB, with a note between them of what was dropped; `log_dir` gets
        stdout.log and stderr.log, each bounded at 4 MiB and the last 64 KiB. Raises `SandboxError` where the program or `cwd` cannot
        be used, or the command could not be killed. Cancelling the awaiting task kills all processes before the cancellation goes on.
        """
        request = frame((list(argv), str(cwd), dict(env), timeout, None if log_dir is None else str(log_dir)))
        try:
            process, ours = _start()
        except OSError as error:
            raise SandboxError(f"cannot start a supervisor process: {error}") from error
        reader, writer = await asyncio.open_connection(sock=ours)
        writer.write(request)
        answer = asyncio.create_task(_converse(process, reader, writer, timeout))
        self._running[answer] = writer
        answer.add_done_callback(self._running.pop)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            writer.write_eof()
            await asyncio.gather(answer, return_exceptions=True)
            raise

    async def close(self) -> None:
        """Kill everything that runs; the `exec`s in flight return with `exit_code` None."""
        for writer in self._running.values():
            writer.write_eof()
        await asyncio.gather(*self._running, return_exceptions=True)


def _start() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A supervisor and our end of its control socket."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            # Without preexec_fn this is vfork and exec: it costs the same however much memory this process holds.
            return subprocess.Popen(_START, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=kept, start_new_session=True), ours
        except BaseException:
            ours.close()
            raise


async def _converse(
    process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout: float | None
) -> ExecResult:
    pid = 0
    try:
        # The supervisor keeps the time; this bound only catches one that was itself stopped or is stuck.
        async with asyncio.timeout(None if timeout is None else timeout + 2 * KILL_SECONDS):
            pid = await _receive(reader)
            reply = await _receive(reader)
            await reader.read()
    except (asyncio.IncompleteReadError, ConnectionError, TimeoutError) as error:
        process.kill()
        if pid:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        raise SandboxError("the command's supervisor process was killed or stopped") from error
    finally:
        writer.close()
    process.wait()
    if "error" in reply:
        raise SandboxError(reply["error"])
    if not reply.pop("gone"):
        raise SandboxError("processes of the command survived SIGKILL (stuck in the kernel?)")
    return ExecResult(**reply)


async def _receive(reader: asyncio.StreamReader) -> Any:
    size = int.from_bytes(await reader.readexactly(8), "little")
    return marshal.loads(await reader.readexactly(size))
