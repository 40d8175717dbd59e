"""What this machine can do: the table behind `openforge doctor`.

Invariant: a component counts as present only when it was seen to work (the daemon answered, the namespace opened), never because its
package is installed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table
from rich.text import Text

from openforge.agents import ADAPTERS, Installation, agents_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One row of the table. `ok` is None for a plain fact, which is neither good nor bad."""

    component: str
    ok: bool | None
    detail: str
    purpose: str = ""


def diagnose() -> list[Finding]:
    """Look at the machine. Takes a few seconds: it imports torch and asks daemons."""
    facts = [_python(), _cpu(), _memory(), _disk(), *_torch()]
    return facts + [_optional(name) for name in COMPONENTS]


def missing(component: str) -> str | None:
    """Why an optional component of `COMPONENTS` cannot be used here, in one line; None when it can."""
    probe, purpose = COMPONENTS[component]
    try:
        probe()
    except _Absent as reason:
        return f"{component}: {reason} (needed for: {purpose})"
    return None


def print_findings(findings: list[Finding], console: Console | None = None) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("component", "", "what was found", "used for"):
        table.add_column(heading)
    signs = {True: Text("✓", "green"), False: Text("–", "yellow"), None: Text("·", "dim")}
    for finding in findings:
        table.add_row(finding.component, signs[finding.ok], Text(finding.detail), Text(finding.purpose, "dim"))
    (console or Console()).print(table)


class _Absent(Exception):
    """The reason a component cannot be used."""


def _optional(name: str) -> Finding:
    probe, purpose = COMPONENTS[name]
    try:
        return Finding(component=name, ok=True, detail=probe(), purpose=purpose)
    except _Absent as reason:
        return Finding(component=name, ok=False, detail=str(reason), purpose=purpose)


def _answer(*argv: str, timeout: float = 10) -> str:
    """The first line a command prints; `_Absent` when it is not there, fails, or does not answer in `timeout` seconds."""
    if shutil.which(argv[0]) is None:
        raise _Absent(f"no `{argv[0]}` on PATH")
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=timeout, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise _Absent(f"`{' '.join(argv)}` did not answer in {timeout:g} s") from None
    except OSError as error:
        raise _Absent(f"`{argv[0]}`: {error.strerror}") from None
    lines = (done.stdout if done.returncode == 0 else done.stderr or done.stdout).strip().splitlines()
    if done.returncode:
        raise _Absent(f"`{' '.join(argv)}`: {lines[-1] if lines else f'exit code {done.returncode}'}")
    return lines[0] if lines else "works"


def _docker() -> str:
    return f"server {_answer('docker', 'version', '--format', '{{.Server.Version}}')}"


def _namespaces() -> str:
    _answer("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "true")
    return "user, mount and pid namespaces open"


def _bubblewrap() -> str:
    version = _answer("bwrap", "--version")
    _answer("bwrap", "--ro-bind", "/", "/", "--unshare-pid", "true")
    return version


def _library(name: str) -> Callable[[], str]:
    def probe() -> str:
        if importlib.util.find_spec(name) is None:
            raise _Absent("not installed")
        # In a process of its own: importing an engine takes many seconds and much memory, and may crash.
        _answer(sys.executable, "-c", f"import {name}", timeout=120)
        return importlib.metadata.version(name)

    return probe


def _agents() -> str:
    found = [f"{name} {adapter.version}" for name, adapter in ADAPTERS.items() if Installation(adapter, agents_folder()).complete]
    if not found:
        raise _Absent("none is installed; see `openforge agents list`")
    return ", ".join(found)


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        raise _Absent("torch sees none")
    names = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return ", ".join(f"{device.name} {device.total_memory / 2**30:.0f} GiB" for device in names)


COMPONENTS: dict[str, tuple[Callable[[], str], str]] = {
    "gpu": (_gpu, "larger models"),
    "docker": (_docker, "nothing yet: tasks with a container image"),
    "namespaces": (_namespaces, "nothing yet: isolated agents"),
    "bubblewrap": (_bubblewrap, "nothing yet: isolated agents"),
    "node": (lambda: _answer("node", "--version"), "agents written for Node.js"),
    "npm": (lambda: _answer("npm", "--version"), "installing such agents"),
    "vllm": (_library("vllm"), "a server for `openforge serve --engine`"),
    "sglang": (_library("sglang"), "nothing yet: rollouts on many GPUs"),
    "agents": (_agents, "training inside a ready-made agent"),
    "postgres": (
        lambda: _answer("postgres", "--version") if shutil.which("postgres") else _answer("pg_isready"),
        "nothing yet: a pool shared by machines",
    ),
}
"""Optional components: name → (probe, what it is used for). A probe returns what it found or raises `_Absent`."""


def _python() -> Finding:
    return Finding(component="python", ok=True, detail=f"{platform.python_version()} at {sys.executable}")


def _cpu() -> Finding:
    flags = _cpu_flags()
    wide = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    usable = len(os.sched_getaffinity(0))
    return Finding(component="cpu", ok=None, detail=f"{usable} of {os.cpu_count()} cores, {platform.machine()} {' '.join(wide)}".rstrip())


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    return Finding(component="memory", ok=None, detail=f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free")


def _disk() -> Finding:
    disk = shutil.disk_usage(Path.cwd())
    return Finding(component="disk", ok=None, detail=f"{disk.free / 2**30:.0f} of {disk.total / 2**30:.0f} GiB free here")


def _torch() -> list[Finding]:
    import torch

    fast = bool({"avx512_bf16", "amx_bf16"} & _cpu_flags()) or (torch.cuda.is_available() and torch.cuda.is_bf16_supported())
    return [
        Finding(component="torch", ok=True, detail=f"{torch.__version__}, {torch.get_num_threads()} threads"),
        Finding(component="bf16", ok=fast, detail="in hardware" if fast else "emulated, slower than fp32 here", purpose="faster training"),
    ]


def _cpu_flags() -> set[str]:
    """The processor's features as Linux names them; empty where it does not say."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())
