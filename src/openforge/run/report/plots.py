"""The curves of a run, as PNG files.

Invariant: a figure is drawn only where its numbers were recorded, and its axes say what they measure and in which unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter

from openforge.run.metrics import Row
from openforge.run.report.summary import STAGES, Summary

BLUE, GREEN, ORANGE, RED, GREY = "#2563eb", "#059669", "#d97706", "#dc2626", "#64748b"
REASONS = ("#cbd5e1", "#fbbf24", "#f87171", "#a78bfa", "#38bdf8", "#fb923c", "#94a3b8", "#4ade80", "#f472b6")
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#94a3b8",
    "axes.labelcolor": "#334155",
    "xtick.color": "#475569",
    "ytick.color": "#475569",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e2e8f0",
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


Needs = Callable[[Summary], list[tuple[list[Row], str]]]


@dataclass(frozen=True, slots=True)
class Plot:
    name: str
    title: str
    caption: str
    path: Path


def draw(summary: Summary, folder: Path) -> list[Plot]:
    """Draw every figure there are numbers for into `folder`, over what an earlier report left there."""
    folder.mkdir(parents=True, exist_ok=True)
    plots = []
    for name, (title, caption, needs, paint) in FIGURES.items():
        if any(_series(rows, key)[0] for rows, key in needs(summary)):
            path = folder / f"{name}.png"
            with figure(path, 5.6, 3.0) as canvas:
                paint(canvas.add_subplot(), summary)
            plots.append(Plot(name, title, caption, path))
    return plots


@contextmanager
def figure(path: Path, width: float, height: float) -> Iterator[Figure]:
    """An empty figure of this size (inches) in the report's style, written to `path` (PNG or SVG, by suffix) at the end."""
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": "openforge"}):  # the same picture is the same file
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        figure.savefig(path, dpi=180, metadata={"Date": None} if path.suffix == ".svg" else None)


def _series(rows: Sequence[Row], key: str, step: str = "step") -> tuple[list[int], list[float]]:
    """The steps at which `key` was recorded, and its values there."""
    known = [(row[step], row[key]) for row in rows if row.get(key) is not None]
    return [step for step, _ in known], [value for _, value in known]


def _steps(axes: Axes, label: str) -> None:
    axes.set_xlabel("optimizer step")
    axes.set_ylabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _legend(axes: Axes) -> None:
    axes.legend(loc="lower left", ncol=4, bbox_to_anchor=(-0.02, 1.0), borderaxespad=0.3, handlelength=1.6, columnspacing=1.4)


def _line(axes: Axes, summary: Summary, key: str, colour: str, label: str | None = None) -> None:
    steps, values = _series(summary.steps, key)
    axes.plot(steps, values, color=colour, label=label, marker="o" if len(steps) < 3 else None, markersize=4)


def _reward(axes: Axes, summary: Summary) -> None:
    steps, means = _series(summary.steps, "reward_mean")
    axes.plot(steps, means, color=BLUE, alpha=0.35, linewidth=1.2, marker="o", markersize=2.5, label="one step")
    width = max(1, min(len(means) // 8, 25))
    padded = np.pad(np.array(means), (width, width), mode="edge")
    smooth = np.convolve(padded, np.ones(2 * width + 1) / (2 * width + 1), mode="valid")
    axes.plot(steps, smooth, color=BLUE, linewidth=2.4, label=f"mean over {2 * width + 1} steps")
    _legend(axes)
    _steps(axes, "mean reward of a step's rollouts")


def _held_out(axes: Axes, summary: Summary) -> None:
    sets = summary.sets
    labels = [label for label in STAGES if any(label in summary.accuracies(name) for name in sets)]
    colours = dict(zip(STAGES, ("#cbd5e1", "#93c5fd", BLUE), strict=True))
    width = 0.8 / max(1, len(labels))
    for place, label in enumerate(labels):
        for index, name in enumerate(sets):
            accuracy = summary.accuracies(name).get(label)
            if accuracy is not None:
                at = index + (place - (len(labels) - 1) / 2) * width
                axes.bar(at, accuracy, width * 0.92, color=colours[label], label=STAGES[label] if index == 0 else None)
                axes.text(at, accuracy + 0.015, f"{accuracy:.1%}", ha="center", fontsize=8.5, color="#1e293b")
    axes.set_xticks(range(len(sets)), [f"held-out {name}" for name in sets])
    axes.set_xlim(-0.6, len(sets) - 0.4)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("accuracy")
    axes.set_ylim(0, 1.12)
    axes.set_yticks(np.linspace(0, 1, 6))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    _legend(axes)


def _evaluations(axes: Axes, summary: Summary) -> None:
    for name, colour in zip(summary.sets, (BLUE, GREEN, ORANGE, RED, GREY) * 9, strict=False):
        rows = [row for row in summary.evaluations if row["set"] == name and row.get("label") != "base model"]
        steps, values = _series(sorted(rows, key=lambda row: row["step"]), "accuracy")
        axes.plot(steps, values, color=colour, marker="o", markersize=4, label=f"held-out {name}")
    _legend(axes)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    _steps(axes, "accuracy")


def _entropy(axes: Axes, summary: Summary) -> None:
    _line(axes, summary, "entropy", GREEN)
    axes.set_ylim(bottom=0)
    _steps(axes, "mean entropy (nats a token)")


def _gap(axes: Axes, summary: Summary) -> None:
    _line(axes, summary, "logprob_gap_max", ORANGE, "largest of a step")
    _line(axes, summary, "logprob_gap", BLUE, "mean of a step")
    axes.axhline(1e-4, color=RED, linewidth=1, linestyle=(0, (4, 3)), label="bar for the mean in fp32")
    axes.set_yscale("log", nonpositive="clip")
    _legend(axes)
    _steps(axes, "|Δ log-probability| (nats)")


def _staleness(axes: Axes, summary: Summary) -> None:
    _line(axes, summary, "staleness_max", ORANGE, "oldest token")
    _line(axes, summary, "staleness_mean", BLUE, "mean")
    axes.set_ylim(bottom=0)
    _legend(axes)
    _steps(axes, "weight versions behind")


def _speed(axes: Axes, summary: Summary) -> None:
    _line(axes, summary, "sample_tokens_per_second", BLUE, "sampled")
    _line(axes, summary, "train_tokens_per_second", GREEN, "trained")
    _counts(axes, "tokens a second")


def _counts(axes: Axes, unit: str) -> None:
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    _legend(axes)
    _steps(axes, unit)


def _share(axes: Axes, summary: Summary) -> None:
    rows = [row for row in summary.steps if row.get("sampled_tokens")]
    steps = [row["step"] for row in rows]
    reasons = [reason for reason, _ in summary.counts("masked").most_common()]
    parts = {"trained": [(row.get("trained_tokens") or 0) / row["sampled_tokens"] for row in rows]}
    parts |= {reason: [(row.get("masked") or {}).get(reason, 0) / row["sampled_tokens"] for row in rows] for reason in reasons}
    bottom = np.zeros(len(rows))
    for (name, shares), colour in zip(parts.items(), (BLUE, *REASONS), strict=False):
        axes.bar(steps, shares, 1.0, bottom=bottom, color=colour, edgecolor=colour, label=name.replace("_", " "), linewidth=0.3)
        bottom += np.array(shares)
    axes.set_ylim(0, 1)
    axes.grid(axis="x", visible=False)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    _legend(axes)
    _steps(axes, "share of sampled tokens")


def _positions(axes: Axes, summary: Summary) -> None:
    _line(axes, summary, "row_positions", GREY, "as rows")
    _line(axes, summary, "positions", BLUE, "as trained")
    _counts(axes, "positions")


def _time(axes: Axes, summary: Summary) -> None:
    rows = [row for row in summary.steps if row.get("train_seconds") is not None]
    steps = [row["step"] for row in rows]
    training = [row["train_seconds"] for row in rows]
    axes.bar(steps, training, 1.0, color=BLUE, label="optimizer step", linewidth=0)
    axes.bar(
        steps,
        [row.get("wait_seconds") or 0 for row in rows],
        1.0,
        bottom=training,
        color="#cbd5e1",
        label="waiting for rollouts",
        linewidth=0,
    )
    axes.grid(axis="x", visible=False)
    _legend(axes)
    _steps(axes, "seconds")


def _loss(axes: Axes, summary: Summary) -> None:
    _line(axes, summary, "loss", BLUE)
    _steps(axes, "loss")
    axes.yaxis.label.set_color(BLUE)
    if any(row.get("grad_norm") is not None for row in summary.steps):
        right = axes.twinx()
        right.spines["right"].set_visible(True)
        right.grid(visible=False)
        _line(right, summary, "grad_norm", ORANGE)
        right.set_ylabel("gradient norm, before clipping")
        right.yaxis.label.set_color(ORANGE)
        right.set_ylim(bottom=0)


def _cold_start(axes: Axes, summary: Summary) -> None:
    axes.plot(*_series(summary.sft, "loss", "sft_step"), color=BLUE)
    axes.set_ylim(bottom=0)
    _steps(axes, "loss (nats a token)")
    axes.set_xlabel("step of the cold start")


def _of_steps(*keys: str) -> Needs:
    return lambda summary: [(summary.steps, key) for key in keys]


FIGURES: dict[str, tuple[str, str, Needs, Callable[[Axes, Summary], None]]] = {
    "reward": ("Reward", "Mean reward of the rollouts that each optimizer step trained on.", _of_steps("reward_mean"), _reward),
    "held_out": (
        "Held-out accuracy",
        "Tasks the model never trained on, each tried once.",
        lambda summary: [([row for row in summary.evaluations if row.get("label") in STAGES], "accuracy")],
        _held_out,
    ),
    "evaluations": (
        "Held-out accuracy over training",
        "Step 0 is before RL.",
        lambda summary: [([row for row in summary.evaluations if row.get("label") not in STAGES], "accuracy")],
        _evaluations,
    ),
    "entropy": ("Entropy", "How undecided the policy is about its next token; at 0 it explores no more.", _of_steps("entropy"), _entropy),
    "agreement": (
        "Engine and trainer agree",
        "The rollout engine's log-probability of each sampled token against the trainer's under the same weights.",
        _of_steps("logprob_gap"),
        _gap,
    ),
    "staleness": (
        "Staleness",
        "How many weight versions old the tokens were that a step trained on.",
        _of_steps("staleness_mean", "staleness_max"),
        _staleness,
    ),
    "trained_share": (
        "What became of the sampled tokens",
        "Every sampled token is trained, or masked for a reason.",
        _of_steps("sampled_tokens"),
        _share,
    ),
    "positions": (
        "What the trees spare",
        "Positions that each optimizer step computed: a prefix that several trajectories share is there once.",
        _of_steps("row_positions"),
        _positions,
    ),
    "speed": (
        "Speed",
        "Sampling and training share the machine.",
        _of_steps("sample_tokens_per_second", "train_tokens_per_second"),
        _speed,
    ),
    "time": (
        "Time a step",
        "Rollouts go on while the trainer trains; waiting is what that did not hide.",
        _of_steps("train_seconds"),
        _time,
    ),
    "loss": (
        "Loss and gradient",
        "The loss of a policy gradient says little about progress; a gradient norm that jumps says trouble.",
        _of_steps("loss"),
        _loss,
    ),
    "sft": ("Cold start", "Supervised loss on the demonstrations, before RL.", lambda summary: [(summary.sft, "loss")], _cold_start),
}
"""name → (title, caption, which columns of which rows it needs at least one of, how it is painted)."""
