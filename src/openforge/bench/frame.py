"""What every benchmark has in common: a result made of rows and bars, printed as a table for people or as one JSON object for machines.

Invariant: with `as_json`, standard output gets exactly one object and nothing else.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure the benchmark must reach."""

    name: str
    value: float
    bar: float
    ok: bool


def at_least(name: str, value: float, bar: float) -> Bar:
    return Bar(name, value, bar, value >= bar)


def at_most(name: str, value: float, bar: float) -> Bar:
    return Bar(name, value, bar, value <= bar)


@dataclass(frozen=True, slots=True)
class BenchResult:
    bench: str
    rows: Sequence[dict[str, Any]]
    """One table: every row has the same keys."""
    bars: Sequence[Bar]
    shown: Sequence[str] | None = None
    """The columns of the table for people, if all of them are too many."""


def machine() -> dict[str, Any]:
    """What the figures depend on: processor, cores, GPU, versions, and how busy the machine was (one-minute load)."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as info:
            model = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), model)
    except OSError:
        pass
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 1),
    }


def median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) >= 0.1 else f"{value:.2g}"
    return "" if value is None else str(value)


def show(result: BenchResult, *, as_json: bool = False) -> None:
    about = machine()
    if as_json:
        content = {"bench": result.bench, "machine": about, "rows": list(result.rows), "bars": [asdict(bar) for bar in result.bars]}
        print(json.dumps(content))
        return
    console = Console()
    table = Table(title=f"{result.bench}: {about['cpu']}, {about['threads']} threads, load {about['load']}")
    columns = result.shown or list(result.rows[0])
    for column in columns:
        table.add_column(column, justify="left" if isinstance(result.rows[0][column], str) else "right")
    for row in result.rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    console.print(table)
    for bar in result.bars:
        console.print(f"[{'green' if bar.ok else 'red'}]{'ok  ' if bar.ok else 'MISS'}[/] {bar.name} = {bar.value:.2f} (bar {bar.bar:g})")
