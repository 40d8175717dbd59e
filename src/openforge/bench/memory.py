"""How much memory something takes.

Invariant: the figure is the process's own high-water mark, not an allocator's book-keeping.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

import torch


def peak_bytes(run: Callable[[], object]) -> int | None:
    """By how much memory rises above what was in use before: of the GPU if there is one, else of the process; None where the system does
    not tell (anything but Linux)."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    if sys.platform != "linux":
        run()
        return None
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark back to what is resident now
    before = _high_water()
    run()
    return _high_water() - before


def _high_water() -> int:
    """Of the resident set, in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
