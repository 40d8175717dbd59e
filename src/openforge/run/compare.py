"""The same steps trained twice, as a run and its replay, or as two replays: how far apart they are.

Invariant: recorded numbers only, and only of steps that both have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator
from rich.console import Console
from rich.table import Table
from safetensors import safe_open
from torch import Tensor

from openforge.run.live import number
from openforge.run.metrics import Row, read_metrics
from openforge.run.report.plots import BLUE, ORANGE, figure
from openforge.run.rundir import RunDir

METRICS = {
    "loss": "loss",
    "grad_norm": "gradient norm",
    "entropy": "entropy (nats a token)",
    "kl": "KL(μ ‖ π) (nats a token)",
    "ratio_mean": "mean π / μ",
    "ratio_max": "largest π / μ of a token",
}
DRAWN = ("loss", "grad_norm", "entropy", "kl")

Pairs = Sequence[tuple[Row, Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Of one metric, at the step where it is largest."""

    metric: str
    step: int
    first: float
    second: float

    @property
    def size(self) -> float:
        return abs(self.first - self.second)


def common_steps(first: RunDir, second: RunDir) -> Pairs:
    """The metrics of the steps in which both trained something."""
    one, other = ({row["step"]: row for row in read_metrics(run.metrics) if row["kind"] == "step"} for run in (first, second))
    return [(one[step], other[step]) for step in sorted(one.keys() & other.keys()) if "loss" in one[step] and "loss" in other[step]]


def differences(pairs: Pairs) -> list[Difference]:
    """One for each of `METRICS`."""

    def largest(metric: str) -> Difference:
        found = (Difference(metric=metric, step=one["step"], first=one[metric], second=other[metric]) for one, other in pairs)
        return max(found, key=lambda difference: difference.size)

    return [largest(metric) for metric in METRICS] if pairs else []


def weights_apart(first: Path, second: Path, start: Path) -> tuple[float, float]:
    """Of two model folders: the largest difference of one weight, and the norm of all differences over that of `first` minus `start`."""
    largest = apart = moved = 0.0
    for one, other, before in _tensors(first, second, start):
        largest = max(largest, float((one - other).abs().max()))
        apart += float((one - other).double().square().sum())
        moved += float((one - before).double().square().sum())
    return largest, (apart / moved) ** 0.5 if moved else 0.0


def print_differences(found: Sequence[Difference], names: tuple[str, str], console: Console) -> None:
    table = Table("metric", "largest difference", "at step", *names, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for each in found:
        table.add_row(METRICS[each.metric], f"{each.size:.1e}", str(each.step), number(each.first), number(each.second))
    console.print(table)


def draw(pairs: Pairs, names: tuple[str, str], path: Path) -> None:
    """Both curves of each of `DRAWN`, one over the other."""
    found = {each.metric: each for each in differences(pairs)}
    with figure(path, 8.4, 5.2) as canvas:
        for metric, axes in zip(DRAWN, canvas.subplots(2, 2).flat, strict=True):
            steps = [one["step"] for one, _ in pairs]
            axes.plot(steps, [one[metric] for one, _ in pairs], color=BLUE, alpha=0.35, linewidth=5, label=names[0])
            axes.plot(steps, [other[metric] for _, other in pairs], color=ORANGE, linewidth=1.4, marker="o", markersize=3, label=names[1])
            axes.set_title(f"largest difference {found[metric].size:.1e}", fontsize=9, color="#475569")
            axes.set_ylabel(METRICS[metric])
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        canvas.legend(*canvas.axes[0].get_legend_handles_labels(), loc="outside upper left", ncol=2)
        canvas.supxlabel("optimizer step", fontsize=9)


def _tensors(*folders: Path) -> Iterator[tuple[Tensor, ...]]:
    """The weights that all of these model folders name, in float32."""
    files: list[list[Any]] = [[safe_open(file, framework="pt") for file in folder.glob("model*.safetensors")] for folder in folders]
    named = [{name: file for file in each for name in file.keys()} for each in files]  # noqa: SIM118 (a file is no mapping)
    for name in sorted(set.intersection(*map(set, named))):
        yield tuple(each[name].get_tensor(name).float() for each in named)
