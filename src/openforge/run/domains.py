"""The ledger of a run's domains: what each launched, what the trainer consumed of it, and what the head deadline took from it.

Invariant: under a window, the consumed units of every domain stay within `tolerance` of its share of all that was consumed, however much
longer its rollouts take; `consume` asserts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from openforge.tasks import discrepancy
from openforge.types import UserError


class Domains:
    def __init__(self, shares: Mapping[str, float], window: int | None, *, per_group: int = 1) -> None:
        """`shares`: domain to its share of the mix. `window`: the scheduler's, in units; `per_group`: units a task is launched as."""
        self.shares = dict(shares)
        self.launched: Counter[str] = Counter()
        """Domain → units; like `consumed` and `evicted`, over the whole run."""
        self.consumed: Counter[str] = Counter()
        self.evicted: Counter[str] = Counter()
        self._window, self._per_group = window, per_group
        self._of: dict[int, str] = {}
        """Unit outstanding → its domain."""
        self._events: dict[str, Counter[str]] = {name: Counter() for name in self.shares}
        """Domain → what happened at the head deadline since the last `row`."""
        self._repaid: list[int] = []
        """For each eviction, the number by which its domain has had its turn again, ascending."""

    def tolerance(self, domain: str) -> float:
        """How many units a domain's consumption may be off its share under a window W, when every eviction has been made up for.

        The consumed units are all before the head H, and o < W overtakers behind it. The prefix is off by at most δ, the discrepancy of the
        launch order (in units, of which a group cut in two adds up to per_group - 1). Of the window's units, w·W ± 2δ are the domain's, so
        among o overtakers it has at most min(o, w·W + 2δ), and at least o - (1 - w)·W - 2δ. Either way its part differs from w·o by at
        most w·(1 - w)·W + 2δ.
        """
        assert self._window is not None
        share = self.shares[domain]
        delta = self._per_group * discrepancy(share, len(self.shares)) + self._per_group - 1
        return share * (1 - share) * self._window + 3 * delta

    def restore(self, units: Iterable[tuple[int, str, bool, bool]], next_unit: int) -> None:
        """Start from (unit, domain, trained, evicted) of every unit on record. `UserError` if it was made under other shares."""
        for unit, domain, trained, evicted in units:
            self.launched[domain] += 1
            if trained:
                self.consumed[domain] += 1
            elif evicted:
                self.evicted[domain] += 1
                self._owe(next_unit)
            else:
                self._of[unit] = domain
        if off := self._off_its_share():
            raise UserError(f"{off}: tasks.weights, or the tasks of a domain, are not those that the run began with: put them back")

    def launch(self, unit: int, domain: str) -> None:
        self.launched[domain] += 1
        self._of[unit] = domain

    def overdue(self, unit: int, verdict: str) -> None:
        """The unit ran past the head deadline; `verdict` is what was done."""
        self._events[self._of[unit]].update(["overdue", verdict])

    def evict(self, unit: int, next_unit: int) -> str:
        """Returns the domain that lost it, and is to have its turn again from `next_unit` on."""
        domain = self._of.pop(unit)
        self.evicted[domain] += 1
        self._owe(next_unit)
        return domain

    def consume(self, units: Iterable[int], head: int) -> None:
        """The trainer took these, after which `head` is the oldest unit outstanding."""
        for unit in units:
            self.consumed[self._of.pop(unit)] += 1
        self._repaid = [number for number in self._repaid if number > head]
        off = self._off_its_share()
        assert off is None, off

    def row(self, batch: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Domain → its metrics: the shares so far, what `batch` says of this step, and events since the last row."""
        launched, consumed = max(1, self.launched.total()), max(1, self.consumed.total())
        rows = {}
        for name, share in self.shares.items():
            events = {event: self._events[name][event] for event in ("overdue", "cut", "refill")}
            shares = {"share": share, "launched_share": self.launched[name] / launched, "consumed_share": self.consumed[name] / consumed}
            rows[name] = {**shares, **batch.get(name, {}), **events}
            self._events[name].clear()
        return rows

    def _off_its_share(self) -> str | None:
        """Which domain's consumption is beyond its tolerance."""
        total = self.consumed.total()
        for name, share in self.shares.items() if self._window is not None else ():
            off = abs(self.consumed[name] - share * total)
            if off > self.tolerance(name) + 2 * len(self._repaid):
                return f"domain {name} is {off:.1f} units off its share of {total}"
        return None

    def _owe(self, next_unit: int) -> None:
        self._repaid.append(max([next_unit, *self._repaid[-1:]]) + self._per_group)
