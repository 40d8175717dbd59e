"""Benchmarks: one file each, behind `openforge bench NAME`."""

from collections.abc import Callable
from pathlib import Path

from openforge.bench import engine, gateway
from openforge.bench.frame import BenchResult as BenchResult
from openforge.bench.frame import show as show

BENCHES: dict[str, Callable[[Path | None, int], BenchResult]] = {"engine": engine.run, "gateway": gateway.run}
"""Name → function of a model folder and a number of repeats."""
