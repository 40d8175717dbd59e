"""Compaction by Pi, in a context too small for what a command prints: a summary, and work that goes on from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hermes import Play, Prompt, call
from stage import Performance, check_ids
from test_small_task import BUG, FIX

from openforge.types import LineageKind, Outcome

pytestmark = pytest.mark.slow

PRINT = "for i in $(seq 500); do echo the value of this line is fine; done"
"""Some 4,000 tokens."""
SUMMARY = "The bug in mean.py: it divides by one too many."


def compacted(workspace: Path) -> Play:
    def play(prompt: Prompt) -> str:
        if not prompt.tools:
            return SUMMARY
        seen = "\n".join(prompt.results)
        if "test_mean.py: ok" in seen:
            return "The mean is right now and the test passes."
        if "Successfully replaced" in seen:
            return call("bash", command="python test_mean.py")
        if prompt.says(SUMMARY):
            return call("edit", path="mean.py", edits=[{"oldText": BUG, "newText": FIX}])
        return call("bash", command=PRINT) if "def mean" in seen else call("read", path="mean.py")

    return play


async def test_what_follows_a_compaction_is_a_continuation(stage: Callable[..., Awaitable[Performance]]) -> None:
    seen = await stage("pi", compacted, context_length=12_000)
    assert (seen.rollout.outcome, seen.rollout.detail) == (Outcome.FINISHED, "")
    assert seen.rollout.reward is not None
    assert seen.rollout.reward.value == 1
    (main,) = seen.chains(LineageKind.MAIN)
    names = [[tool["name"] for tool in reply.response.get("tool_calls", [])] for reply in main]
    assert names == [["read"], ["bash"], ["bash"]]
    goes_on = [lineage for lineage in seen.lineages if lineage.kind is LineageKind.CONTINUATION]
    assert {lineage.of for lineage in goes_on} == {main[-1].id}
    summary, after = sorted(seen.chains(LineageKind.CONTINUATION), key=len)
    assert [reply.response["content"] for reply in summary] == [SUMMARY]
    assert [[tool["name"] for tool in reply.response.get("tool_calls", [])] for reply in after] == [["edit"], ["bash"], []]
    assert (seen.kinds, seen.forks) == ({"main": 1, "continuation": 2}, {"root": 2})
    check_ids(seen)
    assert seen.delivery.trained == seen.delivery.sampled
