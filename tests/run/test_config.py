"""The run file: what loads, what is refused, and in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openforge.run.config import RunConfig, check_resumable, load_config, save_resolved
from openforge.run.yaml_file import Dumper
from openforge.types import Sampling, UserError

BASE: dict[str, Any] = {
    "name": "shop",
    "model": {"path": "models/tiny"},
    "tasks": {"train": "tasks/train.jsonl", "eval": {"a": "tasks/a.jsonl", "b": "/data/b.jsonl"}},
    "agent": {"command": ["python", "agent.py", "{instruction}"], "deadline": "60s"},
    "reward": {"function": "rewards.py:exact_match"},
}
RUN_FILE = """\
name: shop
model:    {path: models/tiny, format: hermes}
tasks:    {train: tasks/train.jsonl, eval: tasks/heldout.jsonl}
agent:    {command: [python, agent.py, "{instruction}"], dialect: chat, deadline: 60s}   # chat: sets OPENAI_BASE_URL, OPENAI_API_KEY
reward:   {function: "rewards.py:exact_match"}
rollout:  {engine: torch, concurrency: 16, group_size: 8, sampling: {temperature: 1.0, max_tokens: 64}}
schedule: {policy: windowed, window: 0.3, max_staleness: 1}
train:    {loss: cispo, groups_per_step: 4, steps: 40, learning_rate: 1.0e-5}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "run.yaml").write_text(RUN_FILE)
    return tmp_path


def load(folder: Path, text: str | None = None, *overrides: str) -> RunConfig:
    if text is not None:
        (folder / "run.yaml").write_text(text)
    return load_config(folder / "run.yaml", overrides)


def complaint(folder: Path, text: str | None = None, *overrides: str) -> str:
    """The one line a broken run file is answered with, without the folder's name."""
    with pytest.raises(UserError) as caught:
        load(folder, text, *overrides)
    line = str(caught.value)
    assert "\n" not in line
    return line.replace(f"{folder}/", "")


def test_a_run_file_loads_with_every_path_absolute(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    config = load(folder)
    assert config.model.path == str(folder / "models" / "tiny")
    assert config.tasks.train == folder / "tasks" / "train.jsonl"
    assert config.run_dir == folder / "runs" / "shop"
    assert config.base_dir == folder
    assert config.agent.deadline == 60
    assert config.rollout.sampling == Sampling(temperature=1.0, max_tokens=64)


def test_a_relative_name_of_the_run_file_gives_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert load_config(Path("run.yaml")) == load(folder)


def test_paths_may_leave_the_folder(folder: Path) -> None:
    (folder / "example").mkdir()
    (folder / "example" / "run.yaml").write_text(RUN_FILE.replace("models/tiny", "../models/tiny"))
    assert load_config(folder / "example" / "run.yaml").model.path == str(folder / "models" / "tiny")


def test_a_hub_id_stays_as_it_is(folder: Path) -> None:
    assert load(folder, None, "model.path=HuggingFaceTB/SmolLM2-135M-Instruct").model.path == "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_overrides_are_yaml(folder: Path) -> None:
    config = load(
        folder,
        None,
        "train.steps=3",
        "train.learning_rate=2e-6",
        "agent.command=[sh, -c, 'a=b']",
        "eval.limit=8",
        "model.format=",
        "seed=7",
    )
    assert (config.train.steps, config.train.learning_rate, config.eval.limit, config.seed) == (3, 2e-6, 8, 7)
    assert config.agent.command == ["sh", "-c", "a=b"]
    assert config.model.format is None


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.steps", "expected `section.key=value`"),
        ("train..steps=1", "expected `section.key=value`"),
        ("train.steps.x=1", "`train.steps` is a value, not a section"),
        ("train.steps=[1", "not valid YAML"),
        ("train.stepz=1", "run.yaml:8: unknown key `train.stepz`: did you mean `train.steps`?"),
        ("evall.every=1", "run.yaml: unknown key `evall`: did you mean `eval`?"),
    ],
)
def test_a_broken_override_is_named(folder: Path, override: str, words: str) -> None:
    assert words in complaint(folder, None, override)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("learning_rate", "lerning_rate", "run.yaml:8: unknown key `train.lerning_rate`: did you mean `train.learning_rate`?"),
        ("schedule:", "shedule: ", "run.yaml:7: unknown key `shedule`: did you mean `schedule`?"),
        ("max_tokens", "max_token", "run.yaml:6: unknown key `rollout.sampling.max_token`: did you mean `rollout.sampling.max_tokens`?"),
        ("reward: ", "group_size: 3\nreward: ", "run.yaml:5: unknown key `group_size`: did you mean `rollout.group_size`?"),
        ("format: hermes", "zzz: 1", "run.yaml:2: unknown key `model.zzz`: `model` knows path, format"),
        (
            "steps: 40",
            "steps: forty",
            "run.yaml:8: `train.steps`: should be a valid integer, unable to parse string as an integer, but is 'forty'",
        ),
        ("steps: 40", "steps: 0", "run.yaml:8: `train.steps`: should be greater than or equal to 1, but is 0"),
        ("engine: torch", "engine: jax", "run.yaml:6: `rollout.engine`: should be 'torch', but is 'jax'"),
        ("temperature: 1.0", "temperature: -1", "run.yaml:6: `rollout.sampling`: temperature must be a number of at least 0"),
        (
            "temperature: 1.0",
            "top_p: 0.9, min_p: 0.1",
            "run.yaml:6: `rollout`: top_p and min_p cannot be used in training: the trainer scores",
        ),
        ("temperature: 1.0", "top_k: 5", "run.yaml:6: `rollout`: top_k cannot be used in training"),
        ("temperature: 1.0", "temperature: 0", "run.yaml:6: `rollout`: temperature 0 cannot be used in training"),
        ("temperature: 1.0", "seed: 1", "run.yaml:6: `rollout`: a seed here would make all rollouts of a group the same"),
        ("name: shop", "name: a/b", "run.yaml:1: `name`: "),
        ("name: shop\n", "", "run.yaml: `name` is missing: add it"),
        ("{path: models/tiny, format: hermes}", "{format: hermes}", "run.yaml:2: `model.path` is missing: add it"),
        ("name: shop", "name: shop\nname: shop", "run.yaml:2: `name` is given twice, first in line 1: remove one"),
        ("name: shop", "name: [", "not valid YAML"),
        (RUN_FILE, "- a\n", "holds no mapping"),
        (RUN_FILE, "", "is missing: add it"),
    ],
)
def test_a_mistake_is_answered_in_one_line_with_its_place(folder: Path, old: str, new: str, words: str) -> None:
    assert old in RUN_FILE
    assert words in complaint(folder, RUN_FILE.replace(old, new))


def test_evaluation_may_sample_as_it_likes(folder: Path) -> None:
    config = load(folder, None, "eval.sampling={temperature: 0.7, top_p: 0.9, top_k: 20}")
    assert config.eval.sampling == Sampling(temperature=0.7, top_p=0.9, top_k=20)


def test_several_mistakes_are_counted(folder: Path) -> None:
    assert complaint(folder, None, "train.steps=x", "seed=y").endswith("(and 1 more)")


def test_a_missing_run_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no run file"):
        load_config(tmp_path / "none.yaml")


@pytest.mark.parametrize("path", ["models/other", "./x", "/nowhere/at/all", "../models/smollm2-135m-instruct", "smollm2-135m-instruct"])
def test_a_missing_model_folder_says_how_to_get_one(folder: Path, path: str) -> None:
    assert "openforge models fetch smollm2-135m-instruct" in complaint(folder, None, f"model.path={path}")


# --- what is saved loads again ---------------------------------------------------------------------------------------------------------

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
floats = st.floats(0.0, 2.0, exclude_min=True, allow_nan=False)
changes = st.fixed_dictionaries(
    {},
    optional={
        "name": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True),
        "agent": st.fixed_dictionaries(
            {"command": st.lists(words | st.sampled_from(["1e-5", "no", "null", "60s", "~", "{workspace}"]), min_size=1, max_size=4)},
            optional={
                "deadline": st.sampled_from(["90s", "5m", 12, 1.5]),
                "env": st.dictionaries(st.from_regex(r"[A-Z]{1,5}", fullmatch=True), words),
            },
        )
        | st.just({"class": "agent.py:Solver"}),
        "rollout": st.fixed_dictionaries(
            {},
            optional={
                "concurrency": st.integers(1, 99),
                "sampling": st.fixed_dictionaries({"temperature": floats}, optional={"stop": st.lists(words, max_size=3)}),
            },
        ),
        "train": st.fixed_dictionaries({}, optional={"learning_rate": floats, "steps": st.integers(1, 10**6)}),
        "schedule": st.fixed_dictionaries(
            {}, optional={"window": st.integers(1, 9) | st.floats(0.01, 1.0), "max_staleness": st.integers(0, 5)}
        ),
        "eval": st.fixed_dictionaries({}, optional={"sampling": st.fixed_dictionaries({"top_p": st.floats(0.1, 1.0)})}),
        "sft": st.just({"data": "sft.jsonl"}),
        "seed": st.integers(0, 2**32),
        "run_dir": st.sampled_from(["here", "../there", "/abs/olute", "~/home"]),
    },
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes)
def test_a_saved_run_file_loads_to_an_equal_configuration(folder: Path, changes: dict[str, Any]) -> None:
    config = load(folder, yaml.dump(BASE | changes, Dumper=Dumper, allow_unicode=True))
    saved = folder / "elsewhere" / "config.yaml"
    saved.parent.mkdir(exist_ok=True)
    save_resolved(config, saved)
    assert load_config(saved) == config


def test_a_run_cannot_go_on_with_other_units(folder: Path) -> None:
    single = load(folder, None, "schedule.unit=rollout")
    check_resumable(load(folder), load(folder, None, "rollout.group_size=4", "schedule.window=2"))
    for recorded, config in ((load(folder), single), (single, load(folder, None, "schedule.unit=rollout", "rollout.group_size=4"))):
        with pytest.raises(UserError, match=r"put schedule\.unit and rollout\.group_size back"):
            check_resumable(recorded, config)
