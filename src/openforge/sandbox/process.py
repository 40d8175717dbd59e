"""The sandbox that is none: plain processes on this machine, without isolation, but with a certain end.

Invariant: when `exec` returns or raises, nothing the command started is alive; when this process dies, even by `kill -9`, nothing that runs
survives it for long. Each command has a supervisor process of its own (`supervisor.py`), forked from one fork server (`forkserver.py`),
which do the work; here is only the conversation with them.
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

_HERE = str(Path(__file__).parent)


class ProcessSandbox:
    """`types.Sandbox` on plain processes. Needs Linux."""

    def __init__(self, preload: Sequence[str] = ()) -> None:
        """`preload`: modules that Python programs run here find imported already; see `forkserver.py`."""
        self._preload = list(preload)
        self._running: dict[asyncio.Task[ExecResult], asyncio.StreamWriter] = {}
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    async def exec(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float | None = None, log_dir: Path | None = None
    ) -> ExecResult:
        """Run `argv` with exactly the environment `env`, standard input empty, and `timeout` in wall-clock seconds.

        Of each stream the result holds the first and the last 64 KiB, with a note between them of what was dropped; `log_dir` gets
        stdout.log and stderr.log, each bounded at 4 MiB and the last 64 KiB. Raises `SandboxError` where the program or `cwd` cannot
        be used, or the command could not be killed. Cancelling the awaiting task kills all processes before the cancellation goes on.
        """
        logs = None if log_dir is None else str(log_dir)
        request = frame((list(argv), str(cwd), dict(env), timeout, logs, self._is_script(argv, env)))
        try:
            control = self._supervisor()
        except OSError as error:
            raise SandboxError(f"cannot start a supervisor process: {error}") from error
        reader, writer = await asyncio.open_connection(sock=control)
        writer.write(request)
        answer = asyncio.create_task(_converse(reader, writer, timeout))
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
        if self._channel is not None and self._server is not None:
            self._channel.close()
            await asyncio.to_thread(self._server.wait)
            self._channel = self._server = None

    def _is_script(self, argv: Sequence[str], env: Mapping[str, str]) -> bool:
        """Whether to run it in a fork with the preloaded modules: `python script.py …`, and no variable that changes Python itself."""
        python = bool(self._preload) and len(argv) > 1 and argv[0] == sys.executable and argv[1].startswith("/")
        return python and not any(name.startswith("PYTHON") for name in env)

    def _supervisor(self) -> socket.socket:
        """Ask the fork server, started where there is none, for a supervisor; our end of its control socket. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._send(theirs)
            except OSError:
                if self._channel is None or self._server is None:
                    ours.close()
                    raise
                self._channel.close()  # somebody killed it
                self._server.wait()
                self._channel = None
                self._send(theirs)
        return ours

    def _send(self, control: socket.socket) -> None:
        if self._channel is None:
            channel, theirs = socket.socketpair()
            with theirs:
                self._server = _start_server(theirs.fileno(), self._preload)
            self._channel = channel
        socket.send_fds(self._channel, [b"."], [control.fileno()])


def _start_server(channel: int, preload: list[str]) -> subprocess.Popen[bytes]:
    start = f"import sys; sys.path.append({_HERE!r}); import forkserver; sys.path.remove({_HERE!r}); forkserver.main({channel}, {preload})"
    flags = [] if preload else ["-I", "-S"]  # site-packages are for the modules to preload
    env = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ} | {"LC_ALL": "C.UTF-8"}
    return subprocess.Popen(
        [sys.executable, *flags, "-c", start],
        pass_fds=[channel],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd="/",
        env=env,
        start_new_session=True,
    )


async def _converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout: float | None) -> ExecResult:
    pid = 0
    try:
        pid = await _receive(reader)
        # The supervisor keeps the time; this bound only catches one that was itself stopped or is stuck.
        async with asyncio.timeout(None if timeout is None else timeout + 2 * KILL_SECONDS):
            reply = await _receive(reader)
            await reader.read()
    except (asyncio.IncompleteReadError, ConnectionError, TimeoutError) as error:
        if isinstance(error, TimeoutError):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raise SandboxError("the command's supervisor process was killed or stopped") from error
    finally:
        writer.close()
    if "error" in reply:
        raise SandboxError(reply["error"])
    if not reply.pop("gone"):
        raise SandboxError("processes of the command survived SIGKILL (stuck in the kernel?)")
    return ExecResult(**reply)


async def _receive(reader: asyncio.StreamReader) -> Any:
    size = int.from_bytes(await reader.readexactly(8), "little")
    return marshal.loads(await reader.readexactly(size))
