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
from openforge.bench.steps import WHOLE, Way, make_engine
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
WAYS = ("calls", "rows", "whole", "tree")
TURNS_A_CALL = 3
"""Call by call takes a minute and everything else a second, so the others take more turns."""
SECONDS = 2.0
"""A case whose turns take less is measured more often than asked for."""
COLUMNS = (
    *("shape", "path", "leaves", "shared", "budget"),
    *(f"{name} {figure}" for name in WAYS for figure in ("tokens", "positions", "s", "MiB", "over ideal")),
    *(f"{what} {name}" for name in WAYS[:-1] for what in ("vs", "ideal vs")),
    *("loss error", "gradient error"),
)
SHOWN = (
    *("shape", "path", "leaves", "shared", "tree tokens", "tree s", "tree MiB"),
    *("vs calls", "vs rows", "ideal vs rows", "tree over ideal"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured together, in turns."""

    shape: Shape
    ways: tuple[str, ...]
    """Of WAYS, `tree` the last of them. `whole` is the tree as well, whatever its size as one piece."""
    budget: int = 8_192
    """Positions a micro-batch, the same for every other way."""


def grid(shares: Sequence[float], leaves: Sequence[int], paths: Sequence[int]) -> tuple[Case, ...]:
    def case(path: int, count: int, shared: int) -> Case:
        return Case(Shape("grid", ((1, shared), (count, path - shared))), ("rows", "tree"))

    return tuple(case(path, count, round(share * path)) for path in paths for count in leaves for share in shares)


AGENT = Case(Shape("agent", ((1, 192), (8, 600))), ("calls", "rows", "tree"))
"""8 attempts of 100 calls each."""
SHARED = Case(Shape("shared75", ((1, 576), (8, 192))), ("rows", "tree"))
SHORT = Case(Shape("short", ((64, 1), (4, 11))), ("rows", "tree"))
"""So little is shared that sharing hardly pays."""
LONG = Case(Shape("long", ((1, 1024), (4, 512), (16, 464))), ("whole", "tree"), budget=4_096)
"""32,768 tokens, the longest path 2,000."""
CASES = (AGENT, SHARED, SHORT, *grid((0.0, 0.25, 0.5, 0.75, 0.9, 0.95), (2, 8, 32), (96, 384)), LONG)


def run(model: Path | None, repeats: int = 3, cases: Sequence[Case] = CASES, seconds: float = SECONDS) -> BenchResult:
    """Measure the model folder `model`, or with None a small random one."""
    rows = []
    with model_folder(model, CONFIG) as folder, Progress(console=Console(stderr=True), transient=True) as progress:
        engine, dense = make_engine(folder), DenseRows(folder)
        task = progress.add_task("", total=len(cases))
        for case in cases:
            progress.update(task, description=f"{case.shape.name}, {case.shape.leaves} leaves of {case.shape.path} tokens")
            rows.append(_measure(engine, dense, case, repeats, seconds))
            progress.advance(task)
    return BenchResult("tree", rows, _bars(rows), SHOWN)


def _measure(engine: TrainEngine, dense: DenseRows, case: Case, repeats: int, seconds: float) -> dict[str, Any]:
    rollouts = Rollouts.random(case.shape, dense.model.config.vocab_size)
    makes = {"calls": rollouts.calls, "rows": rollouts.rows, "whole": rollouts.tree, "tree": rollouts.tree}
    ways = {name: Way(makes[name], WHOLE if name == "whole" else case.budget) for name in case.ways}
    work = {name: way.work() for name, way in ways.items()}
    for way in ways.values():
        way.inspect(engine)
    dense.seconds_per_flop(work["tree"], case.budget)
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
        pace.append(dense.seconds_per_flop(work["tree"], case.budget))
    ideal = {name: median(pace) * flops(dense.model, each) for name, each in work.items()}
    return _row(case, ways, work, ideal)


def _row(case: Case, ways: Mapping[str, Way], work: Mapping[str, Work], ideal: Mapping[str, float]) -> dict[str, Any]:
    """`ideal`: seconds."""
    seconds = {name: median(way.seconds) for name, way in ways.items()}
    row: dict[str, Any] = dict.fromkeys(COLUMNS) | {
        "shape": case.shape.name,
        "path": case.shape.path,
        "leaves": case.shape.leaves,
        "shared": case.shape.shared / case.shape.path,
        "budget": case.budget,
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
    by_row = [row for row in rows if row["vs rows"] is not None]
    same = [row for row in by_row if row["tree positions"] == row["rows positions"]]
    agent, shared, long = (next(row for row in rows if row["shape"] == case.shape.name) for case in (AGENT, SHARED, LONG))
    bars = [
        at_least("speedup_vs_calls", agent["vs calls"], 40.0),
        at_least("speedup_vs_linear_75", shared["vs rows"], 2.0),
        at_least("min_speedup_vs_linear", min(row["vs rows"] for row in by_row if row not in same), 1.0),
        at_least("min_speedup_same_work", min(row["vs rows"] for row in same), 0.95),
        at_most("over_flop_ideal", agent["tree over ideal"], 1.15),
        at_most("gradient_error", max(row["gradient error"] for row in rows), 1e-4),
    ]
    if long["tree MiB"] is not None:
        bars.append(at_most("long_memory", long["tree MiB"] / long["whole MiB"], 0.25))
    return bars
