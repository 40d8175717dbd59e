"""Each real agent fixes a bug, and every one of its calls is recorded for what it is.

The model's replies are scripted in its own format; all else is real: the agent and its tools, HTTP, the gateway, the tokenizer, the parser,
the sandbox, the call log, the coordinator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hermes import Play, call, steps, think
from stage import INSTRUCTION, Performance, check_ids

from openforge.agents import ADAPTERS
from openforge.types import LineageKind, Outcome

pytestmark = pytest.mark.slow

BUG, FIX = "/ (len(values) + 1)", "/ len(values)"
LOOK, TEST = "Where is the bug?", "Now the test."
SED = f"sed -i 's|{BUG}|{FIX}|' mean.py"


@dataclass(frozen=True)
class Part:
    """How the model plays in one agent, and how the calls must come out."""

    play: Callable[[Path], Play]
    main: list[list[str]]
    """The tools called in each reply of the main lineage."""
    kinds: dict[str, int] = field(default_factory=lambda: {"main": 1})
    forks: dict[str, int] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)


def library(finish: str | None = None) -> Part:
    """The agents in `adapters/programs` have the same three tools."""
    replies = [
        think(LOOK, "I will look at it first.\n" + call("read_file", path="mean.py")),
        call("edit_file", path="mean.py", old=BUG, new=FIX),
        think(TEST, call("run_command", command="python test_mean.py")),
    ]
    main = [["read_file"], ["edit_file"], ["run_command"]]
    if finish is None:
        return Part(lambda _: steps(*replies), [*main, []])
    return Part(lambda _: steps(*replies, call(finish, answer="The test passes.")), [*main, [finish]])


PARTS = {
    "claude-code": Part(
        lambda workspace: steps(
            think(LOOK, "I will look at it first.\n" + call("Read", file_path=f"{workspace}/mean.py")),
            call("Edit", file_path=f"{workspace}/mean.py", old_string=BUG, new_string=FIX),
            think(TEST, call("Bash", command="python test_mean.py", description="Run the test")),
        ),
        [["Read"], ["Edit"], ["Bash"], []],
    ),
    "codex": Part(
        lambda _: steps(
            think(LOOK, "I will look at it first.\n" + call("exec_command", cmd="cat mean.py")),
            call("exec_command", cmd=SED),
            think(TEST, call("exec_command", cmd="python test_mean.py")),
        ),
        [["exec_command"], ["exec_command"], ["exec_command"], []],
    ),
    "opencode": Part(
        lambda workspace: steps(
            think(LOOK, "I will look at it first.\n" + call("read", filePath=f"{workspace}/mean.py")),
            call("edit", filePath=f"{workspace}/mean.py", oldString=BUG, newString=FIX),
            think(TEST, call("bash", command="python test_mean.py", description="Run the test")),
        ),
        [["read"], ["edit"], ["bash"], []],
        # The title call comes first and offers no tools, so the main lineage is the one that starts anew.
        kinds={"main": 1, "side": 1},
        forks={"root": 1},
    ),
    "qwen-code": Part(
        lambda workspace: steps(
            think(LOOK, "I will look at it first.\n" + call("read_file", file_path=f"{workspace}/mean.py")),
            call("edit", file_path=f"{workspace}/mean.py", old_string=BUG, new_string=FIX),
            think(TEST, call("run_shell_command", command="python test_mean.py", description="Run the test", is_background=False)),
        ),
        [["read_file"], ["edit"], ["run_shell_command"], []],
    ),
    "pi": Part(
        lambda _: steps(
            think(LOOK, "I will look at it first.\n" + call("read", path="mean.py")),
            call("edit", path="mean.py", edits=[{"oldText": BUG, "newText": FIX}]),
            think(TEST, call("bash", command="python test_mean.py")),
        ),
        [["read"], ["edit"], ["bash"], []],
    ),
    "mini-swe-agent": Part(
        lambda _: steps(
            think(LOOK, "I will look at it first.\n" + call("bash", command="cat mean.py")),
            call("bash", command=SED),
            think(TEST, call("bash", command="python test_mean.py")),
            call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
        ),
        [["bash"], ["bash"], ["bash"], ["bash"]],
    ),
    "smolagents": library("final_answer"),
    "openai-agents": library(),
    "langgraph-openai": library(),
    "langgraph-anthropic": library(),
}


@pytest.mark.parametrize("adapter", PARTS)
async def test_the_small_task(adapter: str, stage: Callable[..., Awaitable[Performance]]) -> None:
    part = PARTS[adapter]
    seen = await stage(adapter, part.play, arguments=part.arguments)
    assert (seen.rollout.outcome, seen.rollout.detail) == (Outcome.FINISHED, "")
    assert seen.rollout.reward is not None
    assert seen.rollout.reward.value == 1
    (main,) = seen.chains(LineageKind.MAIN)
    assert [[tool["name"] for tool in reply.response.get("tool_calls", [])] for reply in main] == part.main
    assert (seen.kinds, seen.forks) == (part.kinds, part.forks)
    assert {reply.dialect for reply in seen.calls} == {ADAPTERS[adapter].dialect}
    assert all(generated.prompt.says(INSTRUCTION) for generated in seen.generated)
    check_ids(seen)
    assert not seen.left_behind
