"""Sub-agents of Claude Code: two at once, each a lineage of its own, told apart by the client's own ids."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from forest import check_forest
from hermes import Play, Prompt, call, think
from stage import INSTRUCTION, Performance, check_ids
from test_small_task import BUG, FIX

from openforge.types import LineageKind, Outcome

pytestmark = pytest.mark.slow

COUNT, NAMES = "Count the lines of mean.py.", "Say which functions mean.py defines."


def agents(workspace: Path) -> Play:
    file = f"{workspace}/mean.py"
    main = [
        think(
            "Two questions at once.",
            call("Agent", description="Count lines", prompt=COUNT, subagent_type="general-purpose", run_in_background=False)
            + "\n"
            + call("Agent", description="Name functions", prompt=NAMES, subagent_type="general-purpose", run_in_background=False),
        ),
        "",
        call("Read", file_path=file),
        call("Edit", file_path=file, old_string=BUG, new_string=FIX),
        call("Bash", command="python test_mean.py", description="Run the test"),
    ]

    def play(prompt: Prompt) -> str:
        done = len(prompt.results)
        if prompt.says(INSTRUCTION):
            return main[done] if done < len(main) else "The mean is right now and the test passes."
        if prompt.says(COUNT):
            return "There are three." if done else call("Bash", command="wc -l mean.py", description="Count lines")
        assert prompt.says(NAMES)
        return "Only mean." if done else call("Read", file_path=file)

    return play


async def test_each_sub_agent_is_a_lineage_of_the_call_that_started_it(stage: Callable[..., Awaitable[Performance]]) -> None:
    seen = await stage("claude-code", agents)
    assert (seen.rollout.outcome, seen.rollout.detail) == (Outcome.FINISHED, "")
    assert seen.rollout.reward is not None
    assert seen.rollout.reward.value == 1
    assert (seen.kinds, seen.forks) == ({"main": 1, "sub_agent": 2}, {"root": 2})
    (main,) = seen.chains(LineageKind.MAIN)
    names = [[tool["name"] for tool in reply.response.get("tool_calls", [])] for reply in main]
    assert names == [["Agent", "Agent"], ["Read"], ["Edit"], ["Bash"], []]
    subs = seen.chains(LineageKind.SUB_AGENT)
    assert sorted(sub[-1].response["content"] for sub in subs) == ["Only mean.", "There are three."]
    assert {call.speaker.agent for call in main} == {None}
    assert [len({call.speaker.agent for call in sub}) for sub in subs] == [1, 1]
    assert {lineage.of for lineage in seen.lineages if lineage.kind is LineageKind.SUB_AGENT} == {main[0].id}
    check_ids(seen)
    tree = check_forest(seen)
    assert len(set(range(len(tree.parents))) - set(tree.parents.tolist())) == 3, "each lineage ends in a leaf of its own"
    assert seen.delivery.trained == seen.delivery.sampled
