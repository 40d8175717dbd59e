"""The reference pages name everything: keys of the run file, columns of the metrics, outcomes, forks."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from openforge.engines.training import TrainEngine, TrainSettings
from openforge.rl import token_weights
from openforge.run.batch import Group, make_batch
from openforge.run.config import RunConfig
from openforge.run.domains import Domains
from openforge.trees import build
from openforge.types import Fork, LineageKind, MaskReason, Outcome, Trajectory

Read = Callable[[str], Any]
DOCS = Path(__file__).parents[2] / "docs"


def test_the_run_file_page_is_what_the_settings_say() -> None:
    made = runpy.run_path(str(DOCS / "run_file.py"))["page"]()
    assert (DOCS / "run-file.md").read_text(encoding="utf-8") == made, "run `python docs/run_file.py`"


def test_the_run_file_page_names_every_key(read_page: Read) -> None:
    text = read_page("docs/run-file.md").text
    for key in keys(RunConfig, ""):
        assert f"| `{key}` |" in text, f"docs/run-file.md lacks {key}"


def test_the_metrics_page_names_every_column(read_page: Read, tiny_model: Path) -> None:
    tokens = np.arange(8, dtype=np.int32)
    sampled = tokens > 3
    path = Trajectory(
        rollout_id="r",
        kind=LineageKind.MAIN,
        call_ids=[],
        ends=np.empty(0, np.int32),
        tokens=tokens,
        sampled=sampled,
        trained=sampled,
        logprobs=np.zeros(8, dtype=np.float32),
        versions=np.zeros(8, dtype=np.int32),
        masked={},
    )
    trained = TrainEngine(tiny_model, TrainSettings()).step([build([path], {"r": 1.0}, token_weights([path]))])
    text = read_page("docs/metrics-and-report.md").text
    sizes = {"version": 0, "vocabulary": 8, "context_length": 8}
    group = Group(group=0, domain="a", members=[])
    domain = Domains({"a": 1.0}, window=1).row(make_batch([group], TrainSettings(), **sizes).domains)["a"]
    for column in (*make_batch([], TrainSettings(), **sizes).row, *trained, *domain):
        assert f"`{column}`" in text, f"docs/metrics-and-report.md lacks {column}"


def test_every_outcome_fork_and_mask_is_explained(read_page: Read) -> None:
    agents, gateway, training = (read_page(f"docs/{name}.md").text for name in ("agents", "gateway", "training"))
    assert all(f"| `{outcome}` |" in agents for outcome in Outcome)
    assert all(f"| `{fork}` |" in gateway for fork in Fork)
    assert all(f"`{reason}`" in training for reason in MaskReason)


def keys(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        key = prefix + (field.alias or name)
        yield key
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from keys(field.annotation, f"{key}.")
        elif name == "reward" or name == "sft":
            inner = next(each for each in field.annotation.__args__ if each is not type(None))  # type: ignore[union-attr]
            yield from keys(inner, f"{key}.")
        elif key == "rollout.sampling":
            yield from (f"{key}.{each}" for each in field.default.__dataclass_fields__ if not each.startswith("_"))
