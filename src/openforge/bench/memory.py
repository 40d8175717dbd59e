"""How much memory something takes.

Invariant: the figure is the process's own high-water mark, not an allocator's book-keeping.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

T = TypeVar("T")


def peak_bytes(run: Callable[[], T]) -> tuple[T, int | None]:
    """What `run` returns, and by how much memory rose above what was in use before: of the GPU if there is one, else of the process;
    None where the system does not tell (anything but Linux)."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        return run(), torch.cuda.max_memory_allocated() - before
    if sys.platform != "linux":
        return run(), None
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark back to what is resident now
    before = _high_water()
    return run(), _high_water() - before


def _high_water() -> int:
    """Of the resident set, in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
