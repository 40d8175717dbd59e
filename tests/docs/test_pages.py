"""What the pages say is true of the code: links, run files, commands, make targets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from openforge.cli import app
from openforge.run.config import RunConfig

MINIMAL = {
    "name": "run",
    "model": {"path": "model"},
    "tasks": {"train": "tasks.jsonl"},
    "agent": {"command": ["python", "agent.py"]},
    "reward": {"function": "rewards.py:score"},
}


def test_relative_links_resolve(page: Any, read_page: Callable[[str], Any]) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.prose):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        path = (page.path.parent / file).resolve() if file else page.path
        assert path.exists(), f"{target} leads nowhere"
        if anchor:
            assert anchor in read_page(str(path)).anchors(), f"{target}: no such heading"


def test_yaml_blocks_are_run_files_or_sections_of_one(page: Any) -> None:
    for block in page.blocks("yaml"):
        RunConfig.model_validate(MINIMAL | yaml.safe_load(block))


def test_inline_sections_are_valid(page: Any) -> None:
    """Such as `agent: {class: "solver.py:Solver"}`."""
    known = "|".join(RunConfig.model_fields)
    for section in re.findall(rf"((?:{known}): {{.+?}})`", page.prose):
        RunConfig.model_validate(MINIMAL | yaml.safe_load(section))


def test_python_blocks_compile(page: Any) -> None:
    for block in page.blocks("python"):
        compile(block, str(page.path), "exec")


def test_commands_exist_with_their_options(page: Any) -> None:
    for block in page.blocks("bash"):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0].rpartition("/")[2] == "openforge":
                parse(words[1:])


def test_commands_in_the_prose_exist(page: Any) -> None:
    for command in re.findall(r"`openforge ([^`]+)`", page.prose):
        words = [word for word in command.split() if word.islower()]
        group: Any = typer.main.get_command(app)
        assert words[0] in group.commands, command
        if len(words) > 1 and hasattr(group.commands[words[0]], "commands"):
            assert words[1] in group.commands[words[0]].commands, command


def test_make_targets_exist(page: Any) -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    in_prose = re.findall(r"`make ([a-z]+)`", page.prose)
    in_blocks = [target for block in page.blocks("bash") for target in re.findall(r"^make ([a-z]+)", block, re.MULTILINE)]
    assert targets >= set(in_prose + in_blocks)


def test_a_wrong_command_is_noticed() -> None:
    for words in (["trian", "run.yaml"], ["train", "run.yaml", "--sett", "a=b"], ["train"], ["models", "get", "x"]):
        with pytest.raises(Exception, match=r"(?i)no such|missing"):
            parse(words)


def parse(words: list[str]) -> None:
    """As the command line would, without running anything."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("openforge", list(words), resilient_parsing=False)
    while hasattr(command, "commands"):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
