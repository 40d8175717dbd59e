"""Benchmarks: one file each, behind `openforge bench NAME`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from openforge.bench import engine, gateway, tree, tree_plot, tree_precision, window, window_plot
from openforge.bench.frame import BenchResult as BenchResult
from openforge.bench.frame import show as show

_MODEL = Path("models/smollm2-135m-instruct")


@dataclass(frozen=True, slots=True)
class Bench:
    run: Callable[[Path | None, int], BenchResult]
    """Of a model folder and a number of repeats."""
    model: Path | None
    """What is measured unless the user names a folder; None: a small model with random weights."""
    plot: Callable[[BenchResult, Path], None] | None = None
    """Draws the result into a PNG or SVG file."""


BENCHES = {
    "engine": Bench(engine.run, _MODEL),
    "gateway": Bench(gateway.run, _MODEL),
    "tree": Bench(tree.run, None, tree_plot.draw),
    "tree-precision": Bench(tree_precision.run, None),
    "window": Bench(window.run, None, window_plot.draw),
}
