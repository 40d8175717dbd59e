"""Steps of a training engine on one batch of rollouts, in several ways that take turns.

Invariant: every step does the whole work, building the trees included, and leaves the weights as they were, so that all of them have the
same loss and the same gradient.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file

from openforge.bench.flops import Work
from openforge.bench.memory import peak_bytes
from openforge.bench.rollouts import Rollouts, Shape
from openforge.engines.training import TrainEngine, TrainSettings
from openforge.engines.training.checkpoint import OPTIMIZER_FILE
from openforge.trees.merge import merge
from openforge.types import TokenTree

WHOLE = 1 << 30
"""A budget that holds any batch."""


def settings(budget: int, dtype: Literal["float32", "bfloat16"] = "float32") -> TrainSettings:
    """Of an engine that computes the step of AdamW, but whose weights a step of 1e-12 cannot change, and whose first moment is the
    gradient (no decay of it, no clipping)."""
    return TrainSettings(dtype=dtype, learning_rate=1e-12, betas=(0.0, 0.95), max_grad_norm=1e9, tokens_per_microbatch=budget)


def make_engine(folder: Path) -> TrainEngine:
    """Of the model in `folder`, its optimizer state in place."""
    engine = TrainEngine(folder, settings(WHOLE))
    engine.step(Rollouts.random(Shape("first", ((1, 16),)), 2).tree())
    return engine


@dataclass(slots=True)
class Way:
    """One way to train the rollouts, and what was measured of it."""

    make: Callable[[], list[TokenTree]]
    budget: int
    """Positions a micro-batch."""
    seconds: list[float] = field(default_factory=list)
    mebibytes: float | None = None
    """How much memory a step takes beside weights and optimizer state."""
    loss: float = 0.0
    positions: int = 0
    """How many the engine ran: more than there are tokens where it repeats a prefix, or trains a tree as rows."""
    gradient: dict[str, torch.Tensor] = field(default_factory=dict)

    def work(self) -> Work:
        return Work.of(merge(self.make()))

    def step(self, engine: TrainEngine) -> None:
        engine.settings = settings(self.budget)
        started = time.perf_counter()
        metrics = engine.step(self.make())
        self.seconds.append(time.perf_counter() - started)
        self.loss, self.positions = metrics["loss"], int(metrics["positions"])

    def inspect(self, engine: TrainEngine) -> None:
        """A step whose memory and gradient are kept."""
        peak = peak_bytes(lambda: self.step(engine))
        self.mebibytes = None if peak is None else peak / 2**20
        self.gradient = gradient(engine)

    def gradient_error(self, other: Way) -> float:
        """The largest difference between the two gradients, over the largest entry of the other."""
        largest = max(float(g.abs().max()) for g in other.gradient.values())
        return max(float((self.gradient[name] - g).abs().max()) for name, g in other.gradient.items()) / largest


def gradient(engine: TrainEngine) -> dict[str, torch.Tensor]:
    """Of the last step, by parameter: float32."""
    with tempfile.TemporaryDirectory() as folder:
        engine.save(Path(folder) / "checkpoint")
        moments = load_file(Path(folder) / "checkpoint" / OPTIMIZER_FILE)
    return {name.removeprefix("exp_avg."): moment for name, moment in moments.items() if name.startswith("exp_avg.")}
