from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, LlamaConfig
from typer.testing import CliRunner

from openforge.bench import tree_plot
from openforge.bench.flops import Work, flops
from openforge.bench.frame import BenchResult, show
from openforge.bench.memory import peak_bytes
from openforge.bench.rollouts import GIVEN, SAMPLED, Rollouts, Shape
from openforge.bench.tree import Case, grid, run
from openforge.cli import app
from openforge.types import TokenTree, UserError

TURN = GIVEN + SAMPLED
CONFIG = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
CASES = (
    Case(Shape("agent", ((1, 20), (3, 2 * TURN))), ("calls", "rows", "tree")),
    Case(Shape("shared75", ((1, 18), (4, TURN))), ("rows", "tree")),
    *grid((0.0, 0.5), (2, 3), (24, 36)),
    Case(Shape("long", ((1, 8), (2, 10), (2, 20))), ("whole", "tree"), budget=60),
)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> BenchResult:
    folder = tmp_path_factory.mktemp("model")
    AutoModelForCausalLM.from_config(CONFIG).save_pretrained(folder)
    return run(folder, 1, CASES, seconds=0.0)


@pytest.mark.slow
def test_one_json_object_with_the_named_bars(result: BenchResult, capsys: pytest.CaptureFixture[str]) -> None:
    show(result, as_json=True)
    content = json.loads(capsys.readouterr().out)
    bars = {bar["name"]: bar for bar in content["bars"]}
    assert set(bars) == {
        "speedup_vs_calls",
        "speedup_vs_linear_75",
        "min_speedup_vs_linear",
        "min_speedup_same_work",
        "over_flop_ideal",
        "gradient_error",
        *(["long_memory"] if sys.platform == "linux" else []),
    }
    assert bars["gradient_error"]["ok"], "the three ways must have the same gradient"
    assert [row["shape"] for row in content["rows"]] == ["agent", "shared75", *["grid"] * 8, "long"]
    assert len({tuple(row) for row in content["rows"]}) == 1
    for row in content["rows"]:
        assert row["loss error"] is None or row["loss error"] < 1e-4


@pytest.mark.slow
def test_the_table_leaves_out_what_was_not_measured(result: BenchResult, capsys: pytest.CaptureFixture[str]) -> None:
    show(result)
    printed = capsys.readouterr().out
    assert "None" not in printed
    assert "speedup_vs_calls" in printed


@pytest.mark.slow
@pytest.mark.parametrize(("name", "magic"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
def test_the_picture_is_written_in_the_format_of_its_name(result: BenchResult, tmp_path: Path, name: str, magic: bytes) -> None:
    tree_plot.draw(result, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(magic)


@pytest.mark.parametrize(("arguments", "message"), [(["engine", "--plot", "a.png"], "no picture"), (["tree", "--plot", "a.jpg"], ".svg")])
def test_a_picture_that_cannot_be_drawn_is_refused_at_once(arguments: list[str], message: str) -> None:
    error = CliRunner().invoke(app, ["bench", *arguments]).exception
    assert isinstance(error, UserError)
    assert message in str(error)


def contributions(trees: list[TokenTree]) -> list[tuple[object, ...]]:
    """Each with all the tokens before it."""
    found = []
    for tree in trees:
        for row, at, *rest in zip(tree.rows, tree.at, tree.targets, tree.logprobs, tree.advantages, tree.weights, strict=True):
            segment = int(np.searchsorted(tree.starts, at, side="right")) - 1
            before = tree.tokens[tree.starts[segment] : at + 1].tolist()
            while (segment := int(tree.parents[segment])) >= 0:
                before = tree.tokens[tree.starts[segment] : tree.starts[segment + 1]].tolist() + before
            found.append((tree.rollout_ids[row], tuple(before), *map(float, rest)))
    return sorted(found)


@settings(deadline=None, max_examples=20)
@given(
    levels=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9)), max_size=2),
    leaves=st.integers(1, 3),
    turns=st.integers(1, 3),
)
def test_calls_rows_and_tree_hold_the_same_contributions(levels: list[tuple[int, int]], leaves: int, turns: int) -> None:
    rollouts = Rollouts.random(Shape("any", (*levels, (leaves, turns * TURN))), 50)
    tree, rows, calls = rollouts.tree(), rollouts.rows(), rollouts.calls()
    assert contributions(tree) == contributions(rows) == contributions(calls)
    assert len(tree) == 1
    assert len(rows) == rollouts.shape.leaves
    assert len(calls) == turns * len(rows)
    assert sum(float(tree.weights.sum()) for tree in calls) == pytest.approx(1)


def test_operations_are_those_that_torch_counts() -> None:
    """Of a plain step, that computes whole squares of attention, and neither scores nor logits a second time."""
    model = AutoModelForCausalLM.from_config(CONFIG, attn_implementation="eager")
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.zeros(1, 40, dtype=torch.long)).logits.sum().backward()
    again = 2 * 2 * 40 * 40 * 32 + 2 * 40 * 64 * 32
    assert counter.get_total_flops() == flops(model, Work(40, 40 * 40, 40)) - again


def test_peak_memory_is_that_of_the_call_alone() -> None:
    peak_bytes(lambda: torch.ones(1 << 26))
    peak = peak_bytes(lambda: torch.ones(1 << 25))
    assert peak is None or abs(peak - 4 * 2**25) < 2**22
