"""The live view of a run in the terminal; one plain line a step where the output is no terminal.

Invariant: it only shows what it is given. It keeps nothing that the metrics do not hold, and nothing waits for it.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

BLOCKS = "▁▂▃▄▅▆▇█"
_PROGRESS = re.compile(r"\d+/\d+.*")


class LiveView:
    """A context manager around a run; `update` it with every metrics row, and in between with what is in flight."""

    def __init__(self, *, total_steps: int, title: str, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stdout)
        self._total, self._title = total_steps, title
        self._row: dict[str, Any] = {}
        self._snapshot: dict[str, Any] = {}
        self._evals: dict[str, list[tuple[str, float | None]]] = {}
        self._rewards: list[float] = []
        self._outcomes: Counter[str] = Counter()
        self._phase = "starting"
        self._said = 0.0
        self._steps: list[tuple[float, int]] = []
        self._live = Live(get_renderable=self._render, console=self.console, refresh_per_second=2, transient=False) if self._fancy else None

    @property
    def _fancy(self) -> bool:
        return self.console.is_terminal

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def phase(self, text: str) -> None:
        """Say what the run is doing now: `training`, `fine-tuning 12/40` …; a log gets its progress every half minute only."""
        words, now = _PROGRESS.sub("", text), time.monotonic()
        if not self._live and (words != _PROGRESS.sub("", self._phase) or now - self._said > 30):
            self.console.print(text, highlight=False)
            self._said = now
        self._phase = text

    def update(self, row: Mapping[str, Any], snapshot: Mapping[str, Any] | None = None) -> None:
        """Show a metrics row (empty: only the snapshot is new). `snapshot` has the keys of the scheduler's snapshot.

        What is shown is replaced, never changed: another thread may be drawing it.
        """
        self._snapshot = {**self._snapshot, **(snapshot or {})}
        kind = row.get("kind")
        if kind == "step":
            self._row = dict(row)
            self._phase = "training"
            self._steps.append((time.monotonic(), row["step"]))
            if row.get("reward_mean") is not None:
                self._rewards.append(row["reward_mean"])
            self._outcomes = Counter(self._outcomes) + Counter(row.get("outcomes") or {})
        elif kind == "eval":
            points = [*self._evals.get(row["set"], ()), (row.get("label") or f"step {row['step']}", row["accuracy"])]
            self._evals = {**self._evals, row["set"]: points}
        if kind in ("step", "eval") and not self._live:
            self.console.print(
                step_line(row, self._total, self._eta()) if kind == "step" else eval_line(row), highlight=False, soft_wrap=True
            )

    def _eta(self) -> float | None:
        """Seconds to the last step at the pace of the last ten."""
        recent = self._steps[-11:]
        if len(recent) < 2:
            return None
        (began, first), (ended, last) = recent[0], recent[-1]
        return (ended - began) / max(1, last - first) * (self._total - last)

    def _render(self) -> RenderableType:
        row, step = self._row, self._row.get("step", 0)
        head = Table.grid(expand=True, padding=(0, 2))
        head.add_column(no_wrap=True)
        head.add_column(ratio=1)
        head.add_column(no_wrap=True, justify="right")
        eta = self._eta()
        left = "" if eta is None or step >= self._total else f"{duration(eta)} left"
        head.add_row(
            Text(f"step {step}/{self._total}", style="bold"),
            ProgressBar(total=max(1, self._total), completed=step),
            Text(f"{duration(row.get('elapsed', 0))} elapsed  {left}"),
        )
        body = Table.grid(expand=True, padding=(0, 3))
        body.add_column(ratio=1)
        body.add_column(ratio=1)
        body.add_row(
            _pairs(
                ("reward", Text.assemble((number(row.get("reward_mean")), "bold green"), "  ", (sparkline(self._rewards), "green"))),
                ("entropy", number(row.get("entropy"))),
                ("logprob gap", f"{number(row.get('logprob_gap'))} nats"),
                ("staleness", f"{number(row.get('staleness_mean'))} mean, {number(row.get('staleness_max'))} max"),
            ),
            _pairs(
                ("sampled", f"{number(row.get('sample_tokens_per_second'))} tokens/s"),
                ("trained", f"{number(row.get('train_tokens_per_second'))} tokens/s"),
                ("share trained", percent(row.get("trained_share"))),
                ("in flight", _in_flight(self._snapshot)),
            ),
        )
        wide = [("rollouts", _counts(self._outcomes))]
        for name, points in self._evals.items():
            wide.append((f"held-out {name}", Text(" → ".join(f"{percent(value)} ({label})" for label, value in points))))
        return Panel(Group(head, Text(), body, Text(), _pairs(*wide)), title=f"[bold]{self._title}[/] · {self._phase}", title_align="left")


def step_line(row: Mapping[str, Any], total: int, eta: float | None = None) -> str:
    """A training step in one line, for logs."""
    parts = [
        f"step {row['step']}/{total}",
        f"reward {number(row.get('reward_mean'))}",
        f"entropy {number(row.get('entropy'))}",
        f"trained {percent(row.get('trained_share'))} of {number(row.get('sampled_tokens'))} tokens",
        f"gap {number(row.get('logprob_gap'))}",
        f"stale {number(row.get('staleness_mean'))}",
        f"prefix won back {number(row['prefix_won'])} tokens" if row.get("prefix_won") else "",
        f"{number(row.get('sample_tokens_per_second'))} tok/s",
        " ".join(f"{name} {count}" for name, count in row.get("outcomes", {}).items()),
        f"{number(row.get('step_seconds'))} s",
    ]
    return " | ".join([*filter(None, parts), *([] if eta is None else [f"ETA {duration(eta)}"])])


def eval_line(row: Mapping[str, Any]) -> str:
    """An evaluation in one line, for logs."""
    where = row.get("label") or f"step {row['step']}"
    return f"held-out {row['set']} ({where}): {percent(row['accuracy'])} of {row['tasks']} tasks"


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """The last values as block characters between the smallest and the largest of them; longer series are averaged to `width`."""
    if not values:
        return ""
    size = -(-len(values) // width)
    means = [sum(values[i : i + size]) / len(values[i : i + size]) for i in range(0, len(values), size)]
    low, high = min(means), max(means)
    return "".join(BLOCKS[round((value - low) / (high - low) * 7) if high > low else 3] for value in means)


def number(value: float | None) -> str:
    """Three significant digits, thousands separated; a dash for what is not known."""
    if value is None:
        return "–"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _pairs(*pairs: tuple[str, RenderableType]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in pairs:
        table.add_row(name, value)
    return table


def _in_flight(snapshot: Mapping[str, Any]) -> str:
    known = {"running": "groups run", "finished": "wait for the trainer"}
    return ", ".join(f"{len(snapshot[key])} {words}" for key, words in known.items() if key in snapshot) or "–"


def _counts(outcomes: Mapping[str, int]) -> Text:
    text = Text()
    for name, count in outcomes.items():
        text.append(f"{name.replace('_', ' ')} {count:,}  ", style="green" if name == "finished" else "yellow")
    return text if outcomes else Text("–")
