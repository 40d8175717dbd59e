"""Agents that are a Python class of the user's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from openforge.agents import AgentContext, AgentSettings, load_agent
from openforge.types import AgentResult, Reward, UserError

SOLVER = """
from openforge.agents import Agent
from openforge.types import AgentResult, Reward

class Minimal(Agent):
    async def agent_run(self, context):
        return AgentResult(output=context.task.instruction.upper())

class Full(Agent):
    async def agent_preprocess(self, context):
        await super().agent_preprocess(context)
        (context.workspace / "note").write_text("from preprocess")

    async def agent_run(self, context):
        ended = await context.sandbox.exec(["cat", "note"], cwd=context.workspace, env=context.env)
        return AgentResult(output=ended.stdout.decode() + " " + context.env["OPENAI_BASE_URL"], workspace=context.workspace)

    async def agent_postprocess(self, context):
        (context.workspace / "note").unlink()

    async def calculate_reward(self, context, result):
        return Reward(value=float("preprocess" in result.output))

class Unfinished(Agent):
    pass

class Stranger:
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "solver.py").write_text(SOLVER)
    return tmp_path


async def test_one_hook_is_enough(folder: Path, make_context: Callable[..., AgentContext]) -> None:
    agent = load_agent(AgentSettings(class_="solver.py:Minimal"), folder)
    agent.check()
    context = make_context("say it")
    await agent.agent_preprocess(context)
    result = await agent.agent_run(context)
    await agent.agent_postprocess(context)
    assert result == AgentResult(output="SAY IT")
    assert await agent.calculate_reward(context, result) is None


async def test_all_four_hooks(folder: Path, make_context: Callable[..., AgentContext]) -> None:
    agent = load_agent(AgentSettings(class_="solver:Full"), folder)
    context = make_context()
    await agent.agent_preprocess(context)
    result = await agent.agent_run(context)
    await agent.agent_postprocess(context)
    assert result.output == f"from preprocess {context.base_url}"
    assert await agent.calculate_reward(context, result) == Reward(value=1.0)
    assert not (context.workspace / "note").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Stranger", "is no subclass of openforge.agents.Agent"),
        ("Unfinished", "making a Unfinished fails: TypeError: .*abstract method .?agent_run"),
        ("Solver", "has no 'Solver'"),
    ],
)
def test_mistakes_are_told_at_load(folder: Path, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_agent(AgentSettings(class_=f"solver.py:{name}"), folder)
