"""Throughput and shift of the policies over the length of a step, as a picture.

Invariant: every point is a row of the result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MultipleLocator, PercentFormatter, StrMethodFormatter

from openforge.bench.frame import BenchResult
from openforge.run.report.plots import BLUE, GREEN, GREY, ORANGE, RED, figure

LINES = {("fifo", None): GREY, ("windowed", 0.1): ORANGE, ("windowed", 0.3): GREEN, ("windowed", 0.5): BLUE, ("greedy", None): RED}


def draw(result: BenchResult, path: Path) -> None:
    """A column for each distribution of durations; above, throughput beside greedy's; below, shift beside that of fifo."""
    rows = [row for row in result.rows if not row["hanging"] and not row["on_deadline"]]
    worlds = list(dict.fromkeys(row["durations"] for row in rows))
    with figure(path, 4.2 * len(worlds), 5.4) as canvas:
        panels = canvas.subplots(2, len(worlds), sharex=True, sharey="row", squeeze=False)
        for (above, below), world in zip(panels.T, worlds, strict=True):
            own = [row for row in rows if row["durations"] == world]
            _panel(above, own, "vs_greedy", 0.95)
            _panel(below, own, "vs_fifo", 1.1)
            above.set_title(f"{world} durations", fontsize=9, color="#334155", loc="right")
            below.set_xlabel("seconds a step")
            below.xaxis.set_major_locator(MultipleLocator(200))
        panels[0][0].set_ylabel("throughput, of greedy's")
        panels[0][0].yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        panels[1][0].set_ylabel("shift, of fifo's")
        panels[1][0].yaxis.set_major_formatter(StrMethodFormatter("{x:g}×"))
        panels[1][0].legend(loc="upper right", handlelength=1.8)


def _panel(axes: Axes, rows: list[dict[str, Any]], ratio: str, bar: float) -> None:
    for (policy, window), colour in LINES.items():
        line = sorted((row["step_s"], row[ratio]) for row in rows if (row["policy"], row["window"]) == (policy, window))
        label = policy if window is None else f"window of {window:g}"
        axes.plot(*zip(*line, strict=True), color=colour, marker="o", markersize=3.5, label=label)
    axes.axhline(bar, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
