"""The little process that stands over one command: starts it, reads its output, kills all it started. Linux only.

Invariants: when this process ends by itself, no process the command started is alive, whatever sessions they made and however often they
forked; and it ends soon after the control socket closes, so a controller that is `kill -9`ed leaves nothing behind.

How: it is a child subreaper (prctl(2)), so every orphan below it becomes its own child and waitpid(2) tells when none is left. Its standard
input is the control socket. It holds and bounds the output itself, so that a flood costs the controller nothing.

It is forked from the fork server, which imports this file as a bare script: only the standard library's cheapest modules here.
"""

from __future__ import annotations

import ctypes
import errno
import marshal
import os
import select
import signal
import time

TYPE_CHECKING = False  # typing itself would cost milliseconds
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

KEPT = 64 * 1024
"""Bytes kept in memory of each stream's beginning, and of its end."""
LOGGED = 4 * 1024 * 1024
"""Bytes of each stream written to its log file."""
KILL_SECONDS = 10.0
"""How long killed processes may take to go; one in an uninterruptible system call can take forever."""
CONTROL = 0
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def frame(message: Any) -> bytes:
    data = marshal.dumps(message)
    return len(data).to_bytes(8, "little") + data


class Capture:
    """One output stream: its beginning and end in memory, its beginning in a log file."""

    def __init__(self, log: str | None) -> None:
        self.pipe, self.inlet = os.pipe()
        os.set_blocking(self.pipe, False)
        self.head, self.tail, self.total, self.logged = bytearray(), bytearray(), 0, 0
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644) if log else None

    def read(self) -> bool:
        """Take what is there, up to 64 KiB. False at the end of the stream."""
        try:
            data = os.read(self.pipe, 65536)
        except BlockingIOError:
            return True
        self.total += len(data)
        room = KEPT - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > 8 * KEPT:
            del self.tail[:-KEPT]
        self._write(data[: LOGGED - self.logged])
        return bool(data)

    def _write(self, data: bytes) -> None:
        try:
            if self.log is not None and data:
                self.logged += os.write(self.log, data)
        except OSError:  # a full disk must not fail the agent
            self.log = None

    def finish(self) -> bytes:
        """Read what the dead processes left in the pipe; the bounded stream, with a note of what was dropped."""
        before = -1
        while before != self.total:
            before = self.total
            self.read()
        if missing := self.total - self.logged:
            end = bytes(self.tail[-min(KEPT, missing) :])
            self._write(b"\n[... %d bytes dropped ...]\n" % (missing - len(end)) + end)
        dropped = self.total - len(self.head) - min(len(self.tail), KEPT)
        note = b"\n[... %d bytes dropped ...]\n" % dropped if dropped > 0 else b""
        return bytes(self.head) + note + bytes(self.tail[-KEPT:])


class Supervisor:
    def __init__(self) -> None:
        self.command = 0
        self.exit_code: int | None = None
        self.wake = wake_on(*_SIGNALS)
        self.prctl = ctypes.CDLL(None).prctl
        self.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def spawn(self, argv: list[str], cwd: str, env: dict[str, str], out: int, err: int, script: bool) -> list[str] | None:
        """Start the command in a session of its own. Raises OSError where it cannot be started.

        With `script` the command is `python script.py …` and no program is executed: this returns in the new process too, with the script
        and its arguments; in the old one it returns None.
        """
        failure, failure_inlet = os.pipe()
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            path = cwd
            try:
                os.setsid()
                # This process has one thread, so "parent thread died" means that it died, by force.
                self.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() != me:
                    os._exit(127)
                for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
                    os.dup2(source, target)
                os.chdir(cwd)
                path = argv[0]
                if script:
                    become_program(env)
                    return argv[1:]
                reset_signals()
                os.execvpe(argv[0], argv, env)
            except (OSError, ValueError) as error:
                code = error.errno if isinstance(error, OSError) and error.errno else errno.EINVAL
                os.write(failure_inlet, marshal.dumps((code, os.strerror(code), path)))
                os._exit(127)
            except BaseException:  # a bug here must not go on as a second supervisor
                os._exit(127)
        self.command = pid
        os.close(failure_inlet)
        failed = os.read(failure, 65536)
        os.close(failure)
        if failed:
            raise OSError(*marshal.loads(failed))
        return None

    def reap(self) -> bool:
        """Bury the dead. False when no child is left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self.command:
                    self.exit_code = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            return False

    def watch(self, captures: tuple[Capture, ...], timeout: float | None) -> bool:
        """Until the command ends, the control socket closes or the time is up, which alone returns True."""
        poll = select.poll()
        readers = {capture.pipe: capture for capture in captures}
        for fd in (CONTROL, self.wake, *readers):
            poll.register(fd, select.POLLIN)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return True
            for fd, _ in poll.poll(None if left is None else left * 1000 + 1):
                if fd == CONTROL:
                    return False
                if fd == self.wake:
                    os.read(self.wake, 4096)
                    self.reap()
                    if self.exit_code is not None:
                        return False
                elif not readers[fd].read():
                    poll.unregister(fd)

    def kill_all(self) -> bool:
        """Kill until no descendant is left; False when some will not go."""
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        deadline = time.monotonic() + KILL_SECONDS
        while self.reap():
            if time.monotonic() > deadline:
                return False
            kill(descendants())
            if poll.poll(20):
                os.read(self.wake, 4096)
        return True


def wake_on(*numbers: int) -> int:
    """The read end of a pipe that gets a byte for each of these signals, which else do nothing."""
    wake, inlet = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(inlet, False)
    previous = signal.set_wakeup_fd(inlet, warn_on_full_buffer=False)
    if previous >= 0:
        os.close(previous)  # the fork server's
    # Handlers, not SIG_IGN: exec would hand ignored signals down to the command.
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return wake


def reset_signals() -> None:
    """Python ignores two signals; whoever started us (nohup, a shell's background job) may have had more ignored."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)


def become_program(env: dict[str, str]) -> None:
    """Make a fork of this process look newly executed, as a Python program sees it."""
    signal.set_wakeup_fd(-1)
    reset_signals()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(env)


def children_by_parent() -> dict[int, list[int]]:
    """From one look at /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(name))
    return children


def descendants() -> list[int]:
    """Pids of all processes below this one."""
    children = children_by_parent()
    found = children.get(os.getpid(), [])
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        try:  # noqa: SIM105 (contextlib is not among the cheap modules)
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def read_exactly(count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = os.read(CONTROL, count - len(data))
        if not piece:
            os._exit(0)  # the controller died before it asked for anything
        data += piece
    return data


def write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(CONTROL, view) :]
        except BrokenPipeError:
            os._exit(0)  # the controller died; what ran is dead by now


def supervise(control: int) -> list[str] | None:
    """Do what the one request on the socket `control` asks.

    None when it is done; in a process that is to become a Python program, the script and its arguments.
    """
    os.dup2(control, CONTROL, inheritable=False)
    os.close(control)
    supervisor = Supervisor()
    write_all(frame(os.getpid()))
    argv, cwd, env, timeout, log_dir, script = marshal.loads(read_exactly(int.from_bytes(read_exactly(8), "little")))
    try:
        if log_dir is not None:
            os.makedirs(log_dir, exist_ok=True)
        out, err = captures = tuple(Capture(log_dir and f"{log_dir}/{name}.log") for name in ("stdout", "stderr"))
        started = time.monotonic()
        program = supervisor.spawn(argv, cwd, env, out.inlet, err.inlet, script)
    except OSError as error:
        write_all(frame({"error": f"cannot run {argv[0]!r}: {error.strerror}: {error.filename!r}"}))
        return None
    if program is not None:
        return program
    os.close(out.inlet)
    os.close(err.inlet)
    timed_out = supervisor.watch(captures, timeout)
    exit_code, seconds = supervisor.exit_code, time.monotonic() - started
    gone = supervisor.kill_all()
    reply = {"exit_code": None if timed_out else exit_code, "timed_out": timed_out, "seconds": seconds}
    write_all(frame({**reply, "stdout": out.finish(), "stderr": err.finish(), "gone": gone}))
    return None
