"""An agent that is any program: started once an attempt, pointed at the gateway by environment and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from openforge.agents.context import AgentContext
from openforge.agents.environment import PLACEHOLDERS, placeholder_values
from openforge.agents.hooks import Agent
from openforge.agents.settings import AgentSettings
from openforge.runfile.commands import check_placeholders, fill_placeholders, resolve_command
from openforge.types import AgentResult


class CommandAgent(Agent):
    """Runs the run file's `agent.command`.

    The program's working directory is the attempt's workspace. An argument that names an existing file relative to the run file's folder
    (`agent.py`) is made absolute; `python` is the interpreter that runs OpenForge, whose folder also leads PATH. Placeholders are replaced
    in one pass, so braces in an instruction are safe; `{{name}}` is a literal `{name}`.
    """

    def __init__(self, settings: AgentSettings, base_dir: Path) -> None:
        """Raises `UserError` for a program or script that is missing or a placeholder that is unknown."""
        super().__init__(settings, base_dir)
        assert settings.command is not None
        check_placeholders(settings.command, PLACEHOLDERS, setting="agent.command")
        self._argv = resolve_command(settings.command, base_dir, setting="agent.command")

    async def agent_run(self, context: AgentContext) -> AgentResult:
        values = placeholder_values(context)
        return await run_program(context, [fill_placeholders(part, values) for part in self._argv])


async def run_program(context: AgentContext, argv: Sequence[str]) -> AgentResult:
    """An agent that is a program, from its start to its end.

    A non-zero exit is in the result; a deadline that passed is a TimeoutError; a program that cannot be run a `SandboxError`.
    """
    ended = await context.sandbox.exec(argv, cwd=context.workspace, env=context.env, timeout=context.deadline, log_dir=context.log_dir)
    if ended.timed_out:
        raise TimeoutError(f"the agent was killed at its deadline of {context.deadline:g} s")
    return AgentResult(
        output=ended.stdout.decode(errors="replace"),
        stderr=ended.stderr.decode(errors="replace"),
        exit_code=ended.exit_code,
        workspace=context.workspace,
    )
