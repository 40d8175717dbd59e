"""How much faster prefix trees train than call by call, and than a row for each rollout.

The same contributions go through the same engine in three ways: `calls`, every call a sequence with all of its prompt; `rows`, every
rollout a sequence; `tree`, every distinct prefix once. All are packed without padding, and the head runs where there is a loss. Plain dense
rows of the same model give the rate at which this machine computes; the tree's operations at that rate are its ideal time. All of them take
turns within one run; figures are medians.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from transformers import LlamaConfig

from openforge.bench.dense import DenseRows
from openforge.bench.flops import Work, flops
from openforge.bench.frame import Bar, BenchResult, at_least, at_most, median
from openforge.bench.model import model_folder
from openforge.bench.rollouts import Rollouts, Shape
from openforge.bench.steps import Way, make_engine, settings
from openforge.engines.training import TrainEngine

CONFIG = LlamaConfig(
    vocab_size=2048,
    hidden_size=256,
    intermediate_size=768,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32_768,
)
"""Small, and yet like a real model where it matters: nearly all of its work is matrix products and attention."""
AGENT = Shape("agent", ((1, 192), (8, 600)))
"""8 attempts of 100 calls each."""
SHARED = Shape("shared75", ((1, 576), (8, 192)))
SHORT = Shape("short", ((64, 1), (4, 11)))
"""So little is shared that sharing hardly pays."""
LONG = Shape("long", ((1, 1024), (4, 512), (16, 464)))
"""A tree of 32,768 tokens."""
SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95)
LEAVES = (2, 8, 32)
PATHS = (96, 384)
BUDGET = 8_192
"""Positions a micro-batch, in every way alike."""
LONG_BUDGETS = (32_768, 4_096)
WAYS = ("calls", "rows", "tree")
COLUMNS = (
    *("shape", "path", "leaves", "shared", "budget"),
    *(f"{name} {figure}" for name in WAYS for figure in ("tokens", "positions", "s", "MiB", "over ideal")),
    *("vs calls", "ideal vs calls", "vs rows", "ideal vs rows", "loss error", "gradient error"),
)
SHOWN = (
    "shape",
    "leaves",
    "path",
    "shared",
    "tree tokens",
    "tree s",
    "tree MiB",
    "vs calls",
    "vs rows",
    "ideal vs rows",
    "tree over ideal",
)
TURNS_A_CALL = 3
"""Call by call takes a minute and everything else a second, so the others take more turns."""


def grid(shares: Sequence[float], leaves: Sequence[int], paths: Sequence[int]) -> tuple[Shape, ...]:
    def shape(path: int, count: int, shared: int) -> Shape:
        return Shape("grid", ((1, shared), (count, path - shared)))

    return tuple(shape(path, count, round(share * path)) for path in paths for count in leaves for share in shares)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and how long."""

    by_call: Sequence[Shape] = (AGENT,)
    """As calls, rows and tree."""
    by_row: Sequence[Shape] = (SHARED, SHORT, *grid(SHARES, LEAVES, PATHS))
    """As rows and tree."""
    alone: Sequence[tuple[Shape, int]] = tuple((LONG, budget) for budget in LONG_BUDGETS)
    """As a tree, under that budget."""
    seconds: float = 2.0
    """A shape whose rounds take less is measured more often than `repeats` says."""


def run(model: Path | None, repeats: int = 3, plan: Plan | None = None) -> BenchResult:
    """Measure the model folder `model`, or with None a small random one."""
    plan = plan or Plan()
    cases = [
        *((shape, ("calls", "rows", "tree"), BUDGET) for shape in plan.by_call),
        *((shape, ("rows", "tree"), BUDGET) for shape in plan.by_row),
        *((shape, ("tree",), budget) for shape, budget in plan.alone),
    ]
    rows = []
    with model_folder(model, CONFIG) as folder, Progress(console=Console(stderr=True), transient=True) as progress:
        engine = cache(lambda budget: make_engine(folder, budget))
        dense = cache(lambda budget: DenseRows(folder, settings(budget)))
        task = progress.add_task("", total=len(cases))
        for shape, names, budget in cases:
            progress.update(task, description=f"{shape.name}, {shape.leaves} leaves of {shape.path} tokens")
            rows.append(_measure(engine(budget), dense(budget), shape, names, repeats, plan.seconds))
            progress.advance(task)
    return BenchResult("tree", rows, _bars(rows), SHOWN)


def _measure(engine: TrainEngine, dense: DenseRows, shape: Shape, names: Sequence[str], repeats: int, seconds: float) -> dict[str, Any]:
    rollouts = Rollouts.random(shape, dense.model.config.vocab_size)
    ways = {name: Way(getattr(rollouts, name)) for name in names}
    work = {name: way.work() for name, way in ways.items()}
    for way in ways.values():
        way.inspect(engine)
    dense.seconds_per_flop(work["tree"])
    calls = ways.get("calls")
    quick = [way for way in ways.values() if way is not calls]
    turns = max(repeats * (TURNS_A_CALL if calls else 1), math.ceil(seconds / sum(way.seconds[-1] for way in quick)))
    pace = []
    for way in quick:
        way.seconds.clear()  # those were the warm-up
    for turn in range(turns):
        if calls and turn and turn % TURNS_A_CALL == 0:
            calls.step(engine)
        for way in quick:
            way.step(engine)
        pace.append(dense.seconds_per_flop(work["tree"]))
    ideal = {name: median(pace) * flops(dense.model, each) for name, each in work.items()}
    return _row(shape, engine.settings.tokens_per_microbatch, ways, work, ideal)


def _row(shape: Shape, budget: int, ways: Mapping[str, Way], work: Mapping[str, Work], ideal: Mapping[str, float]) -> dict[str, Any]:
    """`ideal`: seconds."""
    seconds = {name: median(way.seconds) for name, way in ways.items()}
    row: dict[str, Any] = dict.fromkeys(COLUMNS) | {
        "shape": shape.name,
        "path": shape.path,
        "leaves": shape.leaves,
        "shared": shape.shared / shape.path,
        "budget": budget,
    }
    for name, way in ways.items():
        row |= {
            f"{name} tokens": work[name].positions,
            f"{name} positions": way.positions,
            f"{name} s": seconds[name],
            f"{name} MiB": way.mebibytes,
            f"{name} over ideal": seconds[name] / ideal[name],
        }
    for name, way in ways.items():
        if name != "tree":
            row |= {f"vs {name}": seconds[name] / seconds["tree"], f"ideal vs {name}": ideal[name] / ideal["tree"]}
            row["loss error"] = max(row["loss error"] or 0.0, abs(ways["tree"].loss / way.loss - 1))
            row["gradient error"] = max(row["gradient error"] or 0.0, ways["tree"].gradient_error(way))
    return row


def _bars(rows: Sequence[Mapping[str, Any]]) -> list[Bar]:
    by_call = [row for row in rows if row["calls s"] is not None]
    by_row = [row for row in rows if row["rows s"] is not None]
    same = [row for row in by_row if row["tree positions"] == row["rows positions"]]
    return [
        at_least("speedup_vs_calls", min(row["vs calls"] for row in by_call), 40.0),
        at_least("speedup_vs_linear_75", min(row["vs rows"] for row in rows if row["shape"] == SHARED.name), 2.0),
        at_least("min_speedup_vs_linear", min(row["vs rows"] for row in by_row if row not in same), 1.0),
        at_least("min_speedup_same_work", min(row["vs rows"] for row in same), 0.95),
        at_most("over_flop_ideal", max(row["tree over ideal"] for row in by_call), 1.15),
        at_most("gradient_error", max(row["gradient error"] for row in by_row), 1e-4),
    ]
