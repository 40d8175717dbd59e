"""Writes docs/run-file.md from the settings themselves: `python docs/run_file.py`.

Keys, types, bounds and defaults come from the settings classes, meanings from the docstrings beneath their fields. Where there is
none, because the field's name says it all, or where the reader needs more, `MEANINGS` says it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from openforge.run.config import RunConfig
from openforge.types import Sampling

PAGE = Path(__file__).with_name("run-file.md")

HEAD = """\
# The run file

<!-- Written by `python docs/run_file.py`. Change a meaning there, or in the docstring of the setting. -->

One YAML file describes a run. `openforge train` reads it, checks it, and saves it with every default filled in and every path
made absolute as `config.yaml` in the run directory. A mistake is one line that names file, line and key:

```text
openforge: run.yaml:9: unknown key `rollout.concurency`: did you mean `rollout.concurrency`?
```

- Paths are relative to the run file's folder, never to where the command is typed.
- `--set a.b=value` overrides a key and may be repeated; the value is YAML: `--set train.steps=80 --set rollout.sampling.max_tokens=128`.
- Durations are seconds, or text such as `500ms`, `60s`, `5m`, `2h`.
- Unknown keys and keys given twice are errors.

The smallest useful file:

```yaml
name: my-agent
model:  {path: models/smollm2-135m-instruct}
tasks:  {train: tasks.jsonl}
agent:  {command: [python, agent.py, "{instruction}"]}
reward: {function: "rewards.py:score"}
```
"""

INTRODUCTIONS = {
    "model": "The model that is trained, and how it writes.",
    "tasks": "What the agent is asked to do. A task file is UTF-8 JSON lines. Each line is an object with `instruction`; it may have `id` "
    "(by default the file's name and the line's number) and `domain`. Every other key goes to the reward as `task.data`; the agent "
    "never sees it.",
    "agent": "The program that uses the model: exactly one of `command`, `class` and `adapter`. See [agents](agents.md).",
    "reward": "How a rollout is scored: exactly one of `function` and `command`. The whole section may be left out where a "
    "white-box agent scores "
    "itself. See [agents](agents.md#rewards).",
    "rollout": "How rollouts are made.",
    "rollout.sampling": "How tokens are sampled. These belong to the run: what an agent asks for is recorded and not obeyed, but "
    "for a shorter "
    "`max_tokens` and more `stop` strings. In training, `top_p`, `top_k` and `min_p` must be left off, `temperature` must be above 0, and "
    "`seed` must be left out; `eval.sampling` may use them all.",
    "schedule": "In which order finished groups reach the trainer, and what happens to one that never ends. "
    "See [training](training.md#staleness).",
    "train": "How the policy is trained. See [training](training.md).",
    "eval": "When and how the held-out tasks are tried.",
    "sft": "A cold start: supervised fine-tuning on transcripts before reinforcement learning. Without this section there is none. It uses "
    "`train`'s optimizer settings, but for its own learning rate, which falls to 0 linearly.",
    "gateway": "Where the gateway listens. By default on this machine only.",
}

MEANINGS = {
    "name": "Names the run, its directory, and the model towards the agent (`OPENAI_MODEL`).",
    "seed": "Of the order of tasks, of sampling, and of the cold start's order.",
    "run_dir": "Where everything the run makes goes. It must be new or empty.",
    "base_dir": "The folder that relative paths and the agent's command start from. By default the run file's own.",
    "model.path": "A Hugging Face folder, or the id of a model on the hub.",
    "agent.command": "The program and its arguments, with the placeholders `{base_url}`, `{model}`, `{instruction}`, "
    "`{workspace}`, `{api_key}`, `{context_length}`. "
    "See [agents](agents.md#command-agents).",
    "reward.function": "`file.py:name`, relative to the run file, or `module:name`. See [agents](agents.md#rewards).",
    "reward.command": "A program and its arguments. See [agents](agents.md#rewards).",
    "eval.sampling": "A section like [`rollout.sampling`](#rolloutsampling), with the defaults given there. If it is left out: the "
    "rollouts' own, "
    "but greedy.",
    "train.checkpoint_every": "In optimizer steps. A crash costs the steps since the last checkpoint. See [crashes](crash-and-resume.md).",
    "tasks.train": "The file of the tasks to train on.",
    "rollout.engine": "The engine that samples. `torch` is the embedded one, and the only one so far.",
    "rollout.dtype": "Of the model's body while sampling; the head is float32 always. `auto`: bfloat16 where the hardware "
    "multiplies it, else float32.",
    "rollout.sampling": "See [below](#rolloutsampling).",
    "rollout.sampling.top_p": "1 is off.",
    "rollout.sampling.min_p": "0 is off.",
    "rollout.sampling.max_tokens": "Of one reply.",
    "rollout.sampling.seed": "Refused in training, where every rollout has a seed of its own, made from the run's.",
    "train.loss": "`cispo`; `reinforce`: no correction for older weights; `nll`: the cold start's, which pays no heed to rewards.",
    "train.aggregation": "What weighs the same in the loss: every trained `token`, every `rollout`, or every `group`.",
    "train.advantage": "`std`: (reward - mean) / standard deviation over the group. `none`: reward - mean.",
    "train.groups_per_step": "Groups an optimizer step.",
    "train.steps": "Optimizer steps of the whole run.",
    "train.learning_rate": "The peak, after warm-up.",
    "train.warmup_steps": "The learning rate rises linearly over so many steps.",
    "train.weight_decay": "AdamW's, on matrices; norms and biases do not decay.",
    "train.betas": "AdamW's.",
    "train.max_grad_norm": "The gradient is scaled down to this norm where it is larger.",
    "train.activation_checkpointing": "Compute activations twice instead of keeping them: less memory, more time.",
    "train.tokens_per_microbatch": "Tree positions in one forward pass. It bounds memory, together with the longest sequence, and cannot "
    "change the gradient. See [trees](training.md#trees).",
    "train.seed": "Not used: nothing in training draws random numbers. Set the run's `seed`.",
    "sft.epochs": "How often every transcript is seen.",
    "sft.learning_rate": "At the first step.",
    "gateway.host": "The address to listen on.",
}


def documented(cls: type[Any]) -> dict[str, str]:
    """Field → the docstring beneath it."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            value = ast.literal_eval(text.value) if isinstance(text.value, ast.Constant) else None
            if isinstance(value, str):
                found[field.target.id] = " ".join(value.split())
    return found


def rows(cls: type[Any]) -> Iterator[tuple[str, str, Any, str, str]]:
    """(key, field's own docstring, annotation, bounds, default) of each field."""
    texts = documented(cls)
    if issubclass(cls, BaseModel):
        for name, field in cls.model_fields.items():
            if field.default is PydanticUndefined:
                default = "**required**" if field.is_required() else "`runs/NAME`" if name == "run_dir" else "`{}`"
            else:
                default = (
                    "its own" if isinstance(field.default, BaseModel) or dataclasses.is_dataclass(field.default) else shown(field.default)
                )
            yield field.alias or name, texts.get(name, ""), field.annotation, bounds(field.metadata), default
    else:
        hints = typing.get_type_hints(cls)
        for each in dataclasses.fields(cls):
            yield each.name, texts.get(each.name, ""), hints[each.name], "", shown(each.default)


def shown(default: Any) -> str:
    if default is None:
        return "none"
    return f"`{default if isinstance(default, str | Path) else json.dumps(default)}`"


def bounds(metadata: list[Any]) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    return ", ".join(f"{sign} {getattr(each, name):g}" for each in metadata for name, sign in signs.items() if hasattr(each, name))


def kind(annotation: Any) -> str:
    """A type as a reader of YAML thinks of it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        inside = kind(arguments[0])
        limits = ", ".join(filter(None, (bounds(getattr(each, "metadata", [each])) for each in arguments[1:])))
        return f"{inside} {limits}".strip()
    if origin is typing.Literal:
        return " \\| ".join(f"`{each}`" for each in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(kind(each) for each in arguments if each is not type(None))
    if origin in (list, tuple):
        return f"list of {kind(arguments[0])}"
    if origin is dict:
        return f"map of names to {kind(arguments[1])}"
    names = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`", Path: "path", Sampling: "section"}
    return names.get(annotation, "section")


def table(cls: type[Any], prefix: str) -> str:
    lines = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for key, text, annotation, limits, default in rows(cls):
        section = section_of(annotation)
        meaning = MEANINGS.get(prefix + key, text)
        if section and not prefix and not meaning:
            meaning = f"See [below](#{key})."
        elif section and not prefix:
            meaning = f"See [below](#{key}). {meaning}"
        assert meaning, f"{prefix}{key} has neither a docstring nor a line in MEANINGS"
        is_duration = (key.endswith("deadline") and typing.get_origin(annotation) is not typing.Literal) or key == "timeout"
        sort = "duration" if is_duration else " ".join(filter(None, (kind(annotation), limits)))
        lines.append(f"| `{prefix}{key}` | {sort} | {default} | {meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def section_of(annotation: Any) -> type[Any] | None:
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or annotation is Sampling):
        return annotation
    return next(filter(None, map(section_of, typing.get_args(annotation))), None)


def page() -> str:
    parts = [HEAD, "## At the top", table(RunConfig, "")]
    for name, field in RunConfig.model_fields.items():
        section = section_of(field.annotation)
        if section:
            parts += [f"## {name}", INTRODUCTIONS[name], table(section, f"{name}.")]
            if name == "rollout":
                parts += ["## rollout.sampling", INTRODUCTIONS["rollout.sampling"], table(Sampling, "rollout.sampling.")]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
