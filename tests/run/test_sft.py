"""The cold start on transcripts that do not fit the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openforge.engines.training import TrainSettings
from openforge.run.sft import SftSettings, fine_tune
from openforge.types import MaskReason

CONTEXT = 1024


def learn(model: Path, folder: Path, *transcripts: tuple[str, str]) -> dict[str, Any]:
    """One step's metrics. The tiny model has a token a byte."""
    path = folder / "transcripts.jsonl"
    rows = [[{"role": "user", "content": asked}, {"role": "assistant", "content": said}] for asked, said in transcripts]
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in rows))
    found: list[dict[str, Any]] = []
    settings = SftSettings(data=path, batch_size=len(rows))
    fine_tune(model, settings, train=TrainSettings(layout="tree"), format_name="hermes", seed=0, report=lambda row, *_: found.append(row))
    (row,) = found
    return row


def test_what_a_transcript_says_beyond_the_models_context_is_not_learnt_and_said(tiny_model: Path, tmp_path: Path) -> None:
    row = learn(tiny_model, tmp_path, ("hello", "x" * 2 * CONTEXT), ("hello", "hi"))
    assert row["masked"][MaskReason.CONTEXT_LENGTH] > CONTEXT
    assert CONTEXT / 2 < row["tokens"] < CONTEXT
    assert row["positions"] == CONTEXT - 1 + 2, "the long one's but the last, and two of the short one's reply"
    assert row["skipped"] == 0


def test_a_step_of_which_nothing_fits_leaves_the_model(tiny_model: Path, tmp_path: Path) -> None:
    row = learn(tiny_model, tmp_path, ("x" * CONTEXT, "hi"))
    assert row["masked"] == {MaskReason.CONTEXT_LENGTH: len("hi") + 1}
    assert (row["tokens"], row["skipped"], row["skipped_steps"]) == (0, 1, 0)
