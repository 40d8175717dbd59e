"""Speed-up of trees over rows, over the share of the prefix, as a picture.

Invariant: the ideal line is the ratio of operations alone; nothing measured is in it.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import MultipleLocator, PercentFormatter, StrMethodFormatter

from openforge.bench.frame import BenchResult
from openforge.run.report.plots import BLUE, GREEN, GREY, ORANGE, RED, figure


def draw(result: BenchResult, path: Path) -> None:
    """A panel for each path length of the grid; a line for each number of leaves, and its ideal."""
    rows = [row for row in result.rows if row["shape"] == "grid"]
    lengths = sorted({row["path"] for row in rows})
    with figure(path, 4.2 * len(lengths), 3.4) as canvas:
        panels = canvas.subplots(1, len(lengths), sharey=True, squeeze=False)[0]
        for panel, length in zip(panels, lengths, strict=True):
            _panel(panel, [row for row in rows if row["path"] == length])
            panel.set_title(f"rollouts of {length} tokens", fontsize=9, color="#334155", loc="right")
        panels[0].set_ylabel("times as fast as a row for each rollout")
        panels[0].legend(loc="upper left", handlelength=1.8)


def _panel(axes: Axes, rows: list[dict[str, float]]) -> None:
    for leaves, colour in zip(sorted({row["leaves"] for row in rows}), (GREEN, BLUE, ORANGE, RED), strict=False):
        line = sorted((row["shared"], row["vs rows"], row["ideal vs rows"]) for row in rows if row["leaves"] == leaves)
        shares, measured, ideal = zip(*line, strict=True)
        axes.plot(shares, ideal, color=colour, linewidth=1, linestyle=(0, (4, 3)))
        axes.plot(shares, measured, color=colour, marker="o", markersize=3.5, label=f"{leaves} rollouts")
    axes.plot([], [], color=GREY, linewidth=1, linestyle=(0, (4, 3)), label="operations saved")
    axes.axhline(1, color=GREY, linewidth=0.8)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}×"))
    axes.xaxis.set_major_locator(MultipleLocator(0.25))
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel("share of the rollout that is a common prefix")
