"""How well agents are recorded: the table behind `openforge agents report`, from call logs alone.

Invariant: it counts what the coordinator would train on; it knows nothing that is not in the log and the run's configuration.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from openforge.agents import ADAPTERS, AgentSettings
from openforge.coordinator import delivered, lineages, trajectories
from openforge.pool import Store
from openforge.rl import token_weights
from openforge.run.config import read_config
from openforge.run.live import number, percent
from openforge.run.rundir import RunDir
from openforge.trees import build
from openforge.types import Call, Rollout, Trajectory

_WORDS = ("agent", "version", "dialect", "lineages", "forks")
_NUMBERS = ("reuse", "delivered", "by call", "as rows", "as tree", "ratio")


@dataclass(frozen=True, kw_only=True)
class AgentRow:
    """One run's agent over all its recorded rollouts."""

    agent: str
    version: str
    """The one this OpenForge installs; empty for an agent of the user's own."""
    dialect: str
    rollouts: int
    calls: int
    lineages: Mapping[str, int]
    """Kind -> how many."""
    forks: Mapping[str, int]
    """Reason -> how many calls."""
    prefix_reuse: float | None
    """Of all prompt ids, the share that an earlier call had stored: the first call of a rollout has none."""
    delivered: float | None
    """Of all sampled ids, the share that is to be trained, before rewards are looked at."""
    call_tokens: int
    """Positions in training if each call that is to be trained were a sequence of its own, behind its whole prompt."""
    row_tokens: int
    """If each trajectory were."""
    tree_tokens: int
    """As trained: the trajectories of each group in one tree."""

    @property
    def token_ratio(self) -> float | None:
        """How many times each position of the trees would be computed call by call."""
        return self.call_tokens / self.tree_tokens if self.tree_tokens else None


def agent_rows(folders: Iterable[Path]) -> list[AgentRow]:
    """A row for each run directory among the folders or right below them. Raises `UserError` for a folder that holds none."""
    return [_row(RunDir.open(path)) for folder in folders for path in _run_dirs(folder)]


def print_agent_rows(rows: Sequence[AgentRow], console: Console | None = None) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("agent", "version", "dialect", "rollouts", "calls", "lineages", "forks", *_NUMBERS):
        wide = heading in ("lineages", "forks")
        table.add_column(heading, no_wrap=not wide, min_width=14 if wide else None, justify="left" if heading in _WORDS else "right")
    for row in rows:
        table.add_row(
            row.agent,
            row.version or "–",
            row.dialect,
            number(row.rollouts),
            number(row.calls),
            _counts(row.lineages),
            _counts(row.forks),
            percent(row.prefix_reuse),
            percent(row.delivered),
            number(row.call_tokens),
            number(row.row_tokens),
            number(row.tree_tokens),
            "–" if row.token_ratio is None else f"{row.token_ratio:.1f}×",
        )
    # A pipe has no width of its own.
    (console or Console(width=None if sys.stdout.isatty() else 140)).print(table)


def as_json(rows: Sequence[AgentRow]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]


def _run_dirs(folder: Path) -> list[Path]:
    below = sorted(path.parent for path in folder.glob("*/config.yaml"))
    return below if below and not (folder / "config.yaml").is_file() else [folder]


def _row(run: RunDir) -> AgentRow:
    config = read_config(run.config)
    agent = config.agent
    kinds: Counter[str] = Counter()
    forks: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    dialects: set[str] = set()
    with Store.open(run.database) as store:
        for group in _groups(store.rollouts(), config.units_per_group):
            calls = [store.calls(rollout.id) for rollout in group]
            for recorded in calls:
                kinds.update(lineage.kind.value for lineage in lineages(recorded))
                forks.update(call.fork.value for call in recorded if call.fork is not None)
                dialects |= {call.dialect for call in recorded}
            sums.update(_sums(calls))
    name, version = _identity(agent)
    return AgentRow(
        agent=name,
        version=version,
        dialect=", ".join(sorted(dialects)) or agent.dialect,
        rollouts=sums["rollouts"],
        calls=sums["calls"],
        lineages=dict(sorted(kinds.items())),
        forks=dict(sorted(forks.items())),
        prefix_reuse=sums["shared"] / sums["prompt"] if sums["prompt"] else None,
        delivered=sums["trained"] / sums["sampled"] if sums["sampled"] else None,
        call_tokens=sums["call_tokens"],
        row_tokens=sums["row_tokens"],
        tree_tokens=sums["tree_tokens"],
    )


def _groups(rollouts: Iterable[Rollout], units_per_group: int) -> list[list[Rollout]]:
    """The rollouts of each group; each one of an evaluation alone."""
    groups: dict[int | str, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.id if rollout.unit < 0 else rollout.unit // units_per_group, []).append(rollout)
    return list(groups.values())


def _sums(group: Sequence[Sequence[Call]]) -> dict[str, int]:
    """Counts over the calls of the rollouts of one group."""
    calls = {call.id: call for recorded in group for call in recorded}
    paths = [path for recorded in group for path in trajectories(recorded)]
    delivery = delivered(paths)
    kept = [path for path in paths if path.trained.any()]
    return {
        "rollouts": len(group),
        "calls": len(calls),
        "shared": sum(call.shared for call in calls.values()),
        "prompt": sum(map(_prompt_length, calls.values())),
        "sampled": delivery.sampled,
        "trained": delivery.trained,
        # a sequence's last token predicts nothing, so it is no position
        "call_tokens": sum(_prompt_length(calls[id]) + len(calls[id].sampled) - 1 for id in {id for path in kept for id in path.call_ids}),
        "row_tokens": sum(map(_positions, ([path] for path in kept))),
        "tree_tokens": _positions(kept),
    }


def _positions(paths: Sequence[Trajectory]) -> int:
    """Of the tree that these are merged into."""
    return len(build(paths, {path.rollout_id: 1.0 for path in paths}, token_weights(paths)).tokens)


def _prompt_length(call: Call) -> int:
    return call.shared + len(call.delta)


def _identity(agent: AgentSettings) -> tuple[str, str]:
    """Name and version."""
    if agent.adapter is not None:
        return agent.adapter, ADAPTERS[agent.adapter].version
    if agent.class_ is not None:
        return agent.class_, ""
    assert agent.command is not None
    return " ".join(agent.command[:2]), ""


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', '-')}" for name, count in counts.items()) or "–"
