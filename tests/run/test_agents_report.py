"""The table of how agents were recorded, from run directories."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from openforge.agents import ADAPTERS
from openforge.pool import Store
from openforge.run.agents_report import agent_rows, as_json, print_agent_rows
from openforge.run.config import load_config, save_resolved
from openforge.run.rundir import RunDir
from openforge.types import Call, FinishReason, Fork, Rollout, Sampling, UserError


def call(
    rollout: str, index: int, parent: Call | None = None, *, delta: int, sampled: int, tools: bool = True, fork: Fork | None = None
) -> Call:
    shared = parent.shared + len(parent.delta) + len(parent.sampled) if parent else 0
    return Call(
        id=f"{rollout}-{index}",
        rollout_id=rollout,
        index=index,
        parent_id=parent.id if parent else None,
        shared=shared,
        delta=[index * 1000 + i for i in range(delta)],
        sampled=[index * 1000 + 500 + i for i in range(sampled)],
        logprobs=[-1.0] * sampled,
        versions=[0] * sampled,
        fork=fork,
        finish=FinishReason.STOP,
        sampling=Sampling(),
        dialect="messages",
        request={"messages": [], **({"tools": [{"name": "Read"}]} if tools else {})},
        response={},
        started_at=0.0,
        ended_at=1.0,
    )


@pytest.fixture
async def run_dir(tmp_path: Path, write_run: Callable[..., Path]) -> Path:
    """A run of two rollouts: a title call (4 ids in, 1 out), then 10 in and 3 out, then these 13 and 2 more, 5 out."""
    config = load_config(write_run(agent={"command": None, "adapter": "claude-code"}))
    run = RunDir.create(tmp_path / "runs" / "one")
    save_resolved(config, run.config)
    with Store.open(run.database) as store:
        for name in ("a", "b"):
            await store.start_rollout(Rollout(id=name, task_id="t", unit=0, index=ord(name) - ord("a")))
            first = call(name, 1, delta=10, sampled=3, fork=Fork.ROOT)
            for each in (call(name, 0, delta=4, sampled=1, tools=False), first, call(name, 2, first, delta=2, sampled=5)):
                await store.append(each)
    return run.path


async def test_a_row_counts_what_the_log_holds(run_dir: Path) -> None:
    (row,) = agent_rows([run_dir])
    assert (row.agent, row.version, row.dialect) == ("claude-code", ADAPTERS["claude-code"].version, "messages")
    assert (row.rollouts, row.calls) == (2, 6)
    assert (row.lineages, row.forks) == ({"main": 2, "side": 2}, {"root": 2})
    assert row.prefix_reuse == 13 / (4 + 10 + 15)
    assert row.delivered == 8 / 9
    assert (row.call_tokens, row.row_tokens, row.tree_tokens) == (2 * (12 + 19), 2 * 19, 19), "the title is not trained"
    assert as_json([row])[0]["lineages"] == {"main": 2, "side": 2}


async def test_the_table_shows_it(run_dir: Path) -> None:
    console = Console(file=io.StringIO(), width=160)
    print_agent_rows(agent_rows([run_dir.parent]), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(word in text for word in ("claude-code", "messages", "2 main, 2 side", "2 root", "44.8%", "88.9%", "3.3×"))


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run directory"):
        agent_rows([tmp_path])


async def test_a_damaged_log_is_the_users_to_mend(run_dir: Path) -> None:
    with sqlite3.connect(RunDir.open(run_dir).database) as database:
        database.execute("DELETE FROM calls WHERE id = 'b-1'")
    with pytest.raises(UserError, match="rollout b, call b-2: its parent b-1 is missing"):
        agent_rows([run_dir])
