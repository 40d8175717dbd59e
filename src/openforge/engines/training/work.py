"""How much work a step's passes were, and how well the cost model predicts their time.

Invariant: reported, never decided by: what a step computes does not depend on a clock.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

import numpy as np

from openforge.trees.shape import leaves
from openforge.types import TokenTree


@dataclass(frozen=True, slots=True)
class Work:
    """Of all ranks together, but for `cost`."""

    positions: int
    """That passed through the model: a prefix that is repeated counts as often as it is."""
    pieces: int
    cost: float
    """Of the rank that has most to do: FLOP-equivalents."""

    def metrics(self, forest: TokenTree) -> dict[str, float]:
        """`positions`, `row_positions` (had each leaf of `forest` been a row), `shared` (what sharing spared of them), `pieces`."""
        rows = int((forest.depths + np.diff(forest.starts))[leaves(forest)].sum())
        shared = 1.0 - self.positions / rows if rows else 0.0
        return {"positions": float(self.positions), "row_positions": float(rows), "shared": shared, "pieces": float(self.pieces)}


class Speed:
    """The engine's own rate, in FLOP-equivalents a second: the median of its last steps."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=15)

    def measure(self, cost: float, seconds: float) -> dict[str, float]:
        """`predicted_seconds` of passes of that cost, by the steps before, and `prediction_error`, relative; absent at first."""
        if not cost:
            return {}
        predicted = cost / statistics.median(self._rates) if self._rates else None
        self._rates.append(cost / seconds)
        return {} if predicted is None else {"predicted_seconds": predicted, "prediction_error": predicted / seconds - 1.0}
