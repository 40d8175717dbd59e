"""Metrics: every row whole, once, and in JSON that any reader takes."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from openforge.run.metrics import MetricsWriter, read_metrics
from openforge.run.rundir import RunDir
from openforge.types import UserError


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path / "run")


def scalars(run: RunDir) -> dict[str, list[tuple[int, float]]]:
    board = EventAccumulator(str(run.tensorboard)).Reload()
    return {tag: [(event.step, event.value) for event in board.Scalars(tag)] for tag in board.Tags()["scalars"]}


def test_a_row_is_on_disk_when_write_returns(run: RunDir) -> None:
    with MetricsWriter(run) as metrics:
        metrics.write({"kind": "step", "step": 1, "reward_mean": 0.5})
        (row,) = read_metrics(run.metrics)
    assert row["reward_mean"] == 0.5
    assert row["time"] > 1e9


def test_numbers_that_are_none_become_null(run: RunDir) -> None:
    with MetricsWriter(run) as metrics:
        metrics.write({"step": 1, "loss": math.nan, "parts": {"a": math.inf, "b": np.float32(0.5)}, "n": torch.tensor(3), "path": run.path})
    (row,) = [json.loads(line, parse_constant=pytest.fail) for line in run.metrics.read_text().splitlines()]
    assert (row["loss"], row["parts"], row["n"], row["path"]) == (None, {"a": None, "b": 0.5}, 3, str(run.path))


def test_tensorboard_has_the_same_numbers(run: RunDir) -> None:
    with MetricsWriter(run) as metrics:
        metrics.write({"kind": "step", "step": 3, "reward_mean": 0.5, "outcomes": {"finished": 7}, "loss": math.nan})
        metrics.write({"kind": "eval", "step": 3, "set": "a", "accuracy": 0.25, "label": "after rl"})
        metrics.write({"kind": "sft", "step": 0, "sft_step": 9, "loss": 2.0})
    assert scalars(run) == {
        "sft/loss": [(9, 2.0)],
        "step/reward_mean": [(3, 0.5)],
        "step/outcomes/finished": [(3, 7.0)],
        "eval/a/accuracy": [(3, 0.25)],
    }


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_a_torn_last_line_is_left_out_and_then_cut_off(run: RunDir, cut: int) -> None:
    with MetricsWriter(run) as metrics:
        for step in (1, 2):
            metrics.write({"step": step, "reward_mean": 0.123456789})
    run.metrics.write_bytes(run.metrics.read_bytes()[:-cut])
    assert [row["step"] for row in read_metrics(run.metrics)] == [1]
    with MetricsWriter(run) as metrics:
        metrics.write({"step": 2})
    assert [row["step"] for row in read_metrics(run.metrics)] == [1, 2]


def test_damage_in_the_middle_is_said(run: RunDir) -> None:
    run.metrics.write_text('{"step": 1}\nrubbish\n{"step": 2}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl:2 is not a JSON object"):
        read_metrics(run.metrics)


def test_no_file_has_no_rows(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "none.jsonl") == []


def test_a_resumed_run_shows_every_step_once(run: RunDir) -> None:
    with MetricsWriter(run) as metrics:
        for step in range(1, 6):
            metrics.write({"kind": "step", "step": step, "reward_mean": 0.0})
    time.sleep(1 - time.time() % 1)  # TensorBoard orders its files by the second they were begun in
    with MetricsWriter(run) as metrics:
        assert metrics.rewind(3) == 2
        for step in range(4, 7):
            metrics.write({"kind": "step", "step": step, "reward_mean": 1.0})
    assert [(row["step"], row["reward_mean"]) for row in read_metrics(run.metrics)] == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1), (6, 1)]
    assert scalars(run)["step/reward_mean"] == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1), (6, 1)]


rows = st.lists(st.fixed_dictionaries({"kind": st.sampled_from(["step", "eval"]), "step": st.integers(0, 9)}), max_size=20)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows, st.lists(st.integers(0, 9), max_size=3))
def test_no_row_is_ever_lost(run: RunDir, rows: list[dict[str, Any]], rewinds: list[int]) -> None:
    superseded = run.path / "metrics.superseded.jsonl"
    for path in (run.metrics, superseded):
        path.unlink(missing_ok=True)
    text = "".join(json.dumps(row | {"n": n}) + "\n" for n, row in enumerate(rows))
    run.metrics.write_text(text)
    for step in rewinds:
        with MetricsWriter(run) as metrics:
            metrics.rewind(step)
        assert all(row["step"] <= step for row in read_metrics(run.metrics))
    both = read_metrics(run.metrics) + read_metrics(superseded)
    assert sorted(row["n"] for row in both) == list(range(len(rows)))
