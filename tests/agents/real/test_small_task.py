"""Each real agent fixes a bug, and every one of its calls is recorded for what it is.

The model's replies are scripted in its own format; all else is real: the agent and its tools, HTTP, the gateway, the tokenizer, the parser,
the sandbox, the call log, the coordinator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from forest import check_forest
from hermes import Play, Prompt, call, steps, think, told
from stage import INSTRUCTION, Performance, check_ids

from openforge.agents import ADAPTERS
from openforge.types import LineageKind, Outcome

pytestmark = pytest.mark.slow

BUG, FIX = "/ (len(values) + 1)", "/ len(values)"
LOOK, TEST = "Where is the bug?", "Now the test."
PATCH = f"*** Begin Patch\n*** Update File: mean.py\n@@\n-    return sum(values) {BUG}\n+    return sum(values) {FIX}\n*** End Patch"
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
    sees_it_pass: bool = True
    """Whether a call follows the test that passes."""


THREE_TOOLS = (
    think(LOOK, "I will look at it first.\n" + call("read_file", path="mean.py")),
    call("edit_file", path="mean.py", old=BUG, new=FIX),
    think(TEST, call("run_command", command="python test_mean.py")),
)
"""For the agents in `adapters/programs`, which have the same tools."""
LIBRARY = Part(lambda _: steps(*THREE_TOOLS), [["read_file"], ["edit_file"], ["run_command"], []])


def replace(old: str, new: str) -> str:
    """As aider wants it."""
    return f"mean.py\n```\n<<<<<<< SEARCH\n    return sum(values) {old}\n=======\n    return sum(values) {new}\n>>>>>>> REPLACE\n```\n"


def guesses(workspace: Path) -> Play:
    """Two wrong ones, which aider answers with what the test printed, and the right one."""
    path = [BUG, "/ (len(values) + 2)", "/ (len(values) + 3)", FIX]

    def play(prompt: Prompt) -> str:
        at = max(at for at, text in enumerate(path) if prompt.says(text))
        return f"The divisor is wrong.\n\n{replace(path[at], path[at + 1])}"

    return play


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
            call("exec_command", cmd=f"apply_patch <<'EOF'\n{PATCH}\nEOF"),
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
    # It rebuilds its prompt for every call (the files' new state, then a reminder), so each call is a root that goes on from the last.
    "aider": Part(
        guesses,
        [[]],
        kinds={"main": 1, "continuation": 2},
        forks={"root": 2},
        arguments=["--edit-format", "diff", "--auto-test", "--test-cmd", "python test_mean.py", "mean.py"],
        sees_it_pass=False,
    ),
    # It shows the model its own tool calls as text, which no reply ever was, so each call goes on from an edited history.
    "smolagents": Part(
        lambda _: told(*THREE_TOOLS, call("final_answer", answer="The test passes.")),
        [["read_file"]],
        kinds={"main": 1, "continuation": 3},
        forks={"edited": 3},
    ),
    "openai-agents": LIBRARY,
    "langgraph-openai": LIBRARY,
    "langgraph-anthropic": LIBRARY,
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
    assert any(generated.prompt.says("test_mean.py: ok") for generated in seen.generated) is part.sees_it_pass
    check_ids(seen)
    check_forest(seen)
    assert not seen.left_behind


async def test_a_signed_system_prompt_costs_no_prefix(stage: Callable[..., Awaitable[Performance]]) -> None:
    """claude-code#68900, #50085: the attribution header changes with every request; the adapter turns it off, here it is on."""
    part = PARTS["claude-code"]
    seen = await stage("claude-code", part.play, env={"CLAUDE_CODE_ATTRIBUTION_HEADER": "1"})
    assert (seen.kinds, seen.forks) == (part.kinds, part.forks)
    assert all("normalised" in call.request for call in seen.calls)
    check_ids(seen)
    check_forest(seen)
