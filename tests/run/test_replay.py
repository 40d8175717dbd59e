"""Recorded groups trained again: as the run did it, as rows, and with other settings."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from openforge.engines.training import TrainEngine
from openforge.pool import Store
from openforge.run.batch import make_batch, read_groups
from openforge.run.compare import METRICS, common_steps, differences, weights_apart
from openforge.run.config import load_config
from openforge.run.replay import replay
from openforge.run.rundir import RunDir
from openforge.types import FloatArray, UserError

WriteRun = Callable[..., Path]
Openforge = Callable[..., subprocess.CompletedProcess[str]]
STEPS = 3


@pytest.fixture
def run(write_run: WriteRun, openforge: Openforge) -> RunDir:
    """Three steps through trees in fp32, after a cold start whose checkpoint is no longer there."""
    lines = [[{"role": "user", "content": f"say {word}"}, {"role": "assistant", "content": "abcabc"}] for word in ("one", "two")]
    run_file = write_run(
        tasks={"eval": {}},
        sft={"data": "sft.jsonl", "batch_size": 1, "learning_rate": 1e-3},
        train={"steps": STEPS, "checkpoint_every": 1, "learning_rate": 1e-3, "layout": "tree"},
    )
    (run_file.parent / "sft.jsonl").write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in lines))
    result = openforge("train", run_file)
    assert result.returncode == 0, result.stdout + result.stderr
    made = RunDir.open(run_file.parent / "runs" / "tiny")
    assert not made.checkpoint(0).exists()
    return made


def again(run: RunDir, name: str, *overrides: str, against: RunDir | None = None) -> RunDir:
    out = RunDir(run.path.parent / name)
    replay(run, load_config(run.config, overrides), out, against or run, Console(file=io.StringIO()))
    return out


def sizes(first: RunDir, second: RunDir) -> dict[str, float]:
    """Metric → the largest difference over all steps."""
    pairs = common_steps(first, second)
    assert [one["step"] for one, _ in pairs] == list(range(1, STEPS + 1))
    return {each.metric: each.size for each in differences(pairs)}


def logprobs(run: RunDir, replayed: RunDir, layout: str) -> FloatArray:
    """Of the last step's trained tokens under the weights that it left: float32 [C]."""
    config = load_config(run.config, [f"train.layout={layout}"])
    engine = TrainEngine.restore(replayed.checkpoint(STEPS), config.train)
    with Store.open(run.database) as store:
        groups = read_groups(store, store.steps()[STEPS], config.units_per_group)
    batch = make_batch(groups, config.train, version=0, vocabulary=engine.vocabulary, context_length=engine.context_length)
    assert batch.tree is not None
    return np.concatenate(list(engine.logprobs(batch.tree).values()))


@pytest.mark.slow
def test_a_run_through_trees_is_the_same_through_rows(run: RunDir) -> None:
    rows = again(run, "rows", "train.layout=rows")
    other = again(run, "other", "train.learning_rate=1e-4", against=rows)
    assert sizes(run, rows) == pytest.approx(dict.fromkeys(METRICS, 0), abs=1e-5)
    assert all(one["positions"] < 0.8 * other["positions"] for one, other in common_steps(run, rows))
    apart, of_training = weights_apart(run.checkpoint(STEPS), rows.checkpoint(STEPS), rows.checkpoint(0))
    assert apart < 1e-5
    assert of_training < 1e-3
    np.testing.assert_allclose(logprobs(run, run, "tree"), logprobs(run, rows, "rows"), rtol=0, atol=1e-5)
    assert (rows.plots / "replay.png").stat().st_size > 10_000
    assert not other.checkpoint(0).exists(), "it began with the cold start of the other replay"
    assert sizes(run, other)["kl"] > 1e-4, "the comparison tells another curve from the same one"


def test_a_replay_needs_trained_steps_and_a_new_folder(write_run: WriteRun, tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    config = load_config(write_run())
    with pytest.raises(UserError, match="another folder"):
        replay(run, config, out=run, against=run, console=Console())
    with pytest.raises(UserError, match="neither a run nor a replay"):
        replay(run, config, out=RunDir(tmp_path / "new"), against=run, console=Console())
    run.metrics.touch()
    with pytest.raises(UserError, match="no trained step"):
        replay(run, config, out=RunDir(tmp_path / "new"), against=run, console=Console())
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_step_without_its_metrics_is_named_before_anything_is_written(run: RunDir) -> None:
    run.metrics.write_bytes(b"")
    with pytest.raises(UserError, match=r"metrics\.jsonl has no row of step 1"):
        again(run, "new")
    assert not (run.path.parent / "new").exists()
