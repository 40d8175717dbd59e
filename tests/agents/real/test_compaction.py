"""Compaction, in a context too small for what commands print: a summary, and work that goes on from it.

Pi summarises in a conversation of its own and keeps the last messages; Codex asks in the same one, without tools, and keeps the user's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from forest import check_forest
from hermes import Play, Prompt, call
from stage import Performance, check_ids
from test_small_task import BUG, FIX, PATCH

from openforge.types import LineageKind, Outcome

pytestmark = pytest.mark.slow

PRINT = "for i in $(seq 500); do echo the value of this line is fine; done"
"""Some 4,000 tokens."""
SUMMARY = "The bug in mean.py: it divides by one too many."


@dataclass(frozen=True)
class Scene:
    shell: Callable[[str], str]
    """A call that runs a command."""
    fix: str
    fixed: str
    """What the agent says of a fix that worked."""
    context_length: int
    before: int
    """Replies before the compaction."""
    forks: dict[str, int]

    def play(self, workspace: Path) -> Play:
        def play(prompt: Prompt) -> str:
            results = "\n".join(prompt.results)
            if not prompt.tools:
                return SUMMARY
            if "test_mean.py: ok" in results:
                return "The mean is right now and the test passes."
            if self.fixed in results:
                return self.shell("python test_mean.py")
            if prompt.says(SUMMARY):
                return self.fix
            return self.shell(PRINT if "def mean" in results else "cat mean.py")

        return play


SCENES = {
    "pi": Scene(
        shell=lambda command: call("bash", command=command),
        fix=call("edit", path="mean.py", edits=[{"oldText": BUG, "newText": FIX}]),
        fixed="Successfully replaced",
        context_length=12_000,
        before=3,
        forks={"root": 2},
    ),
    "codex": Scene(
        shell=lambda command: call("exec_command", cmd=command),
        fix=call("exec_command", cmd=f"apply_patch <<'EOF'\n{PATCH}\nEOF"),
        fixed="Success",
        context_length=16_000,
        before=4,
        forks={"root": 1, "edited": 1},
    ),
}


@pytest.mark.parametrize("adapter", SCENES)
async def test_a_summary_and_what_follows_it_go_on_from_the_main_lineage(
    adapter: str, stage: Callable[..., Awaitable[Performance]]
) -> None:
    scene = SCENES[adapter]
    seen = await stage(adapter, scene.play, context_length=scene.context_length)
    assert (seen.rollout.outcome, seen.rollout.detail) == (Outcome.FINISHED, "")
    assert seen.rollout.reward is not None
    assert seen.rollout.reward.value == 1
    (main,) = seen.chains(LineageKind.MAIN)
    assert len(main) == scene.before
    summary, after = sorted(seen.chains(LineageKind.CONTINUATION), key=len)
    assert [reply.response["content"] for reply in summary] == [SUMMARY]
    assert len(after) == 3
    goes_on = {lineage.call_ids[0]: lineage for lineage in seen.lineages if lineage.kind is LineageKind.CONTINUATION}
    assert (goes_on[summary[0].id].of, goes_on[summary[0].id].purpose) == (main[-1].id, "compact")
    assert goes_on[after[0].id].of in (main[-1].id, summary[0].id)
    assert (seen.kinds, seen.forks) == ({"main": 1, "continuation": 2}, scene.forks)
    check_ids(seen)
    check_forest(seen)
    assert seen.delivery.trained == seen.delivery.sampled
