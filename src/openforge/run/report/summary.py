"""What a run came to, from its metrics rows.

Invariant: a number that was not recorded is absent, never guessed. Of a step or an evaluation recorded twice (a crash between the row and
the checkpoint), the later row counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from openforge.run.evaluate import BASE, END, START
from openforge.run.metrics import Row

STAGES = {BASE: "base model", START: "before RL", END: "after RL"}
"""Labels of evaluations, and what the report calls the model then."""
RECENT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    steps: list[Row]
    """One a step, ascending."""
    evaluations: list[Row]
    """One a (set, label, step), in the order they were made."""
    sft: list[Row]
    """One a step of the cold start (`sft_step`); its `step` is 0, for it comes before RL."""
    phases: list[tuple[str, float]]
    """What took how many seconds."""

    @property
    def sets(self) -> list[str]:
        return list(dict.fromkeys(row["set"] for row in self.evaluations))

    def accuracies(self, name: str) -> dict[str, float | None]:
        """Of one held-out set: label → accuracy, for the labelled evaluations."""
        return {row["label"]: row["accuracy"] for row in self.evaluations if row["set"] == name and row.get("label") in STAGES}

    def table(self, name: str) -> list[Row]:
        """The evaluations of a set that compare stages; without any, all of them."""
        rows = [row for row in self.evaluations if row["set"] == name]
        return [row for row in rows if row.get("label") in STAGES] or rows

    def total(self, key: str) -> float:
        return sum(row.get(key) or 0 for row in self.steps)

    def domains(self) -> list[Row]:
        """One a domain: its shares at the last step, what it gave and lost over all steps, and its means over the last `RECENT` steps."""
        rows = [row["domains"] for row in self.steps if row.get("domains")]
        table = []
        for name, last in (rows[-1] if rows else {}).items():
            own = [row[name] for row in rows if name in row]
            totals = {key: sum(row.get(key) or 0 for row in own) for key in ("groups", "overdue", "cut", "refill")}
            recent = {key: [row[key] for row in own[-RECENT:] if row.get(key) is not None] for key in ("reward_mean", "staleness_mean")}
            means = {key: fmean(values) if values else None for key, values in recent.items()}
            table.append({"domain": name, "share": last["share"], "consumed_share": last["consumed_share"], **totals, **means})
        return table

    def counts(self, key: str) -> Counter[str]:
        """Sums over all steps of a column that counts by name, such as `outcomes`."""
        counts: Counter[str] = Counter()
        for row in self.steps:
            counts.update(row.get(key) or {})
        return counts


def summarise(rows: Sequence[Row]) -> Summary:
    steps = {row["step"]: row for row in rows if row["kind"] == "step"}
    evaluations = {(row["set"], row.get("label"), row["step"]): row for row in rows if row["kind"] == "eval"}
    return Summary(
        steps=[steps[step] for step in sorted(steps)],
        evaluations=list(evaluations.values()),
        sft=list({row["sft_step"]: row for row in rows if row["kind"] == "sft"}.values()),
        phases=_phases(rows),
    )


def _phases(rows: Sequence[Row]) -> list[tuple[str, float]]:
    """An evaluation says its `seconds`, the cold start how long it has run, a step how long it trained and waited for rollouts."""
    cold_start = max((row.get("elapsed") or 0.0 for row in rows if row["kind"] == "sft"), default=0.0)
    seconds = {"cold start": cold_start} if cold_start else {}

    def add(name: str, value: Any) -> None:
        if value:
            seconds[name] = seconds.get(name, 0.0) + value

    for row in rows:
        if row["kind"] == "eval":
            add("evaluation", row.get("seconds"))
        elif row["kind"] == "step":
            add("optimizer steps", row.get("train_seconds"))
            add("waiting for rollouts", row.get("wait_seconds"))
    return list(seconds.items())
