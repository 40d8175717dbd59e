"""The run file: one YAML file, every section declared by the room that it steers.

Invariant: a `RunConfig` is complete and absolute. Every default is filled in and no path depends on the working directory, so the file that
`save_resolved` writes loads to an equal configuration from anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import Field, ValidationError, model_validator

from openforge.agents import AgentSettings
from openforge.engines.training import TrainSettings
from openforge.gateway.sampling import CheckedSampling
from openforge.pool import ScheduleSettings
from openforge.rewards import RewardSettings
from openforge.run.config_errors import explain
from openforge.run.models import missing_model
from openforge.run.sft import SftSettings
from openforge.run.yaml_file import Dumper, YamlFile, read_value, read_yaml
from openforge.tasks import TaskSettings
from openforge.types import Sampling, Settings, UserError

T = TypeVar("T")


class ModelSettings(Settings):
    path: str
    """A Hugging Face folder, or the id of a model on the hub."""
    format: str | None = None
    """How the model writes messages and tool calls (see formats.md); by default what its chat template shows."""


class RolloutSettings(Settings):
    engine: Literal["torch"] = "torch"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    concurrency: int = Field(default=16, ge=1)
    """Agents that run at once."""
    group_size: int = Field(default=8, ge=2)
    """Rollouts a task, whose rewards are compared with one another."""
    sampling: CheckedSampling = Sampling()
    kv_tokens: int = Field(default=65_536, ge=64)
    """Tokens whose keys and values fit in the engine's memory, running and cached together; the context is at most this."""
    token_budget: int | None = Field(default=None, ge=1)
    """Sampled tokens a rollout may use; one that needs more ends as truncated."""

    @model_validator(mode="after")
    def _trainable(self) -> RolloutSettings:
        sampling = self.sampling
        cut = [name for name, off in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)) if getattr(sampling, name) != off]
        if cut:
            raise ValueError(
                f"{' and '.join(cut)} cannot be used in training: the trainer scores tokens under the whole distribution, which would then "
                "not be the one they were sampled from; leave it out here (eval.sampling may use it)"
            )
        if sampling.temperature == 0:
            raise ValueError(
                "temperature 0 cannot be used in training: all rollouts of a group would be the same; eval.sampling may use it"
            )
        if sampling.seed is not None:
            raise ValueError("a seed here would make all rollouts of a group the same: set the run's `seed` instead")
        return self


class EvalSettings(Settings):
    every: int = Field(default=0, ge=0)
    """Evaluate after every so many optimizer steps; 0 is before and after training only."""
    limit: int | None = Field(default=None, ge=1)
    """The first so many tasks of each held-out set; all by default."""
    sampling: CheckedSampling | None = None
    """By default the rollouts' own, but greedy."""


class GatewaySettings(Settings):
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    """0 is any free port."""


class RunConfig(Settings):
    """A whole run file."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    model: ModelSettings
    tasks: TaskSettings
    agent: AgentSettings
    reward: RewardSettings | None = None
    """None where a white-box agent scores itself (`calculate_reward`)."""
    rollout: RolloutSettings = RolloutSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    train: TrainSettings = TrainSettings()
    eval: EvalSettings = EvalSettings()
    sft: SftSettings | None = None
    gateway: GatewaySettings = GatewaySettings()
    seed: int = 0
    run_dir: Path = Field(default_factory=lambda data: Path("runs") / data["name"])
    base_dir: Path = Path()
    """The folder that relative paths and the agent's command start from: the run file's own."""

    @property
    def units_per_group(self) -> int:
        """What the scheduler counts: a group is one unit, or each of its rollouts is."""
        return 1 if self.schedule.unit == "group" else self.rollout.group_size

    @model_validator(mode="after")
    def _scored(self) -> RunConfig:
        if self.agent.class_ is None and self.reward is None:
            raise ValueError("a program cannot score itself: add a `reward` section")
        return self


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run file, apply `a.b=value` overrides (values are YAML), and resolve every path against the file's folder.

    Raises `UserError` with one line that names file, line and key. A model folder that is not there is an error too.
    """
    config = read_config(path, overrides)
    problem = missing_model(config.model.path, config.base_dir)
    if problem:
        raise UserError(f"{path}: {problem}")
    return config


def read_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """`load_config` without a look at the model: enough for what only reads a run."""
    file = read_yaml(path)
    data = file.data
    for override in overrides:
        _override(data, override)
    data.setdefault("base_dir", str(path.absolute().parent))
    try:
        config = RunConfig.model_validate(data)
    except ValidationError as error:
        raise UserError(explain(error, RunConfig, YamlFile(file.path, data, file.node))) from None
    base = (path.absolute().parent / config.base_dir.expanduser()).resolve()
    config = _absolute(config, base).model_copy(update={"base_dir": base})
    local = base / Path(config.model.path).expanduser()
    if local.is_dir():
        config = config.model_copy(update={"model": config.model.model_copy(update={"path": str(local.resolve())})})
    return config


def check_resumable(recorded: RunConfig, config: RunConfig) -> None:
    """Raise `UserError` if the run's units, which are on record by number, would mean something else under `config`."""
    if recorded.units_per_group != config.units_per_group:
        raise UserError(
            f"a run whose groups are {recorded.units_per_group} units each cannot go on with {config.units_per_group}: "
            "put schedule.unit and rollout.group_size back, or begin a new run"
        )


def save_resolved(config: RunConfig, path: Path) -> None:
    """Write the complete configuration, atomically."""
    scratch = path.with_suffix(".tmp")
    text = yaml.dump(config.model_dump(mode="json", by_alias=True), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)


def _override(data: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    keys = dotted.strip().split(".")
    if not equals or not all(keys):
        raise UserError(f"--set {override}: expected `section.key=value`, for example `train.steps=40`")
    section = data
    for depth, key in enumerate(keys[:-1], 1):
        if section.get(key) is None:
            section[key] = {}
        section = section[key]
        if not isinstance(section, dict):
            raise UserError(f"--set {override}: `{'.'.join(keys[:depth])}` is a value, not a section")
    section[keys[-1]] = read_value(text, f"--set {override}")


def _absolute(value: T, base: Path) -> T:
    """`value` with every `Path` in it made absolute."""
    changed: Any = value
    if isinstance(value, Settings):
        changed = value.model_copy(update={name: _absolute(getattr(value, name), base) for name in type(value).model_fields})
    elif isinstance(value, dict):
        changed = {key: _absolute(item, base) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        changed = type(value)(_absolute(item, base) for item in value)
    elif isinstance(value, Path):
        changed = Path(base, value.expanduser()).resolve()
    return changed  # type: ignore[no-any-return]
