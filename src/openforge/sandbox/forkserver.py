"""The process that supervisors are forked from: a fork of this small one costs milliseconds, whatever the controller has in memory.

Invariants: it ends with its controller; and where a supervisor was killed by force, what it stood over is killed from here.

With `preload` it also imports modules once, and a command `python script.py …` runs in a fork of it that has them already. Such a program
is the same program: own `__main__`, arguments, environment, streams and exit. Only the time its imports take is saved, which for a large
SDK is most of what a short attempt costs.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys

import supervisor  # type: ignore[import-not-found]


def main(channel: int, preload: list[str]) -> None:
    """Serve requests on the socket `channel`. Comes back only in a process that has become somebody's Python program, and as its end."""
    if sys.path and not sys.path[0]:
        del sys.path[0]
    for name in preload:
        with contextlib.suppress(Exception):  # the program will meet the same error, and report it
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # keeps the collector from touching, and so copying, the shared pages
    argv = serve(socket.socket(fileno=channel))
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # `random` does so by itself after a fork
    program = sys.modules["__main__"]
    vars(program).clear()
    vars(program).update(__name__="__main__", __file__=argv[0], __builtins__=__builtins__, __spec__=None, __doc__=None, __package__=None)
    sys.argv[:] = argv
    sys.path.insert(0, os.path.dirname(argv[0]))
    with open(argv[0], "rb") as file:
        code = compile(file.read(), argv[0], "exec", dont_inherit=True)
    exec(code, vars(program))


def serve(channel: socket.socket) -> list[str]:
    """Fork a supervisor for each control socket that arrives. Returns, in a grandchild, the script to run and its arguments."""
    ctypes.CDLL(None).prctl(supervisor.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake = supervisor.wake_on(signal.SIGCHLD)
    supervisors: set[int] = set()
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(channel, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == wake:
                os.read(wake, 4096)
                reap(supervisors)
                continue
            data, controls, _, _ = socket.recv_fds(channel, 1, 1)
            if not data:
                os._exit(0)  # the controller is gone, and every supervisor sees that for itself
            pid = os.fork()
            if pid == 0:
                channel.close()
                os.close(wake)
                argv: list[str] | None = supervisor.supervise(controls[0])
                if argv is None:
                    os._exit(0)
                return argv
            os.close(controls[0])
            supervisors.add(pid)


def reap(supervisors: set[int]) -> None:
    """Bury the dead; where one was no supervisor that ended in peace, kill what has become this process's own child."""
    strays = False
    try:
        while (dead := os.waitpid(-1, os.WNOHANG))[0]:
            strays |= dead[0] not in supervisors or dead[1] != 0
            supervisors.discard(dead[0])
    except ChildProcessError:
        return
    if strays:
        supervisor.kill(pid for pid in supervisor.children_by_parent().get(os.getpid(), ()) if pid not in supervisors)
