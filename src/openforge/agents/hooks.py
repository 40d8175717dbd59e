"""The four hooks: everything the system asks of an agent."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import sys
from abc import ABC, abstractmethod
from pathlib import Path

from openforge.agents.context import AgentContext
from openforge.agents.environment import PLACEHOLDERS, environment
from openforge.agents.settings import AgentSettings
from openforge.runfile.commands import check_placeholders
from openforge.types import AgentResult, Reward, UserError


class Agent(ABC):
    """Subclass this for an agent in Python. One object serves all attempts, many at a time, so an attempt's state belongs in its context.

    Only `agent_run` must be written. What a hook raises ends the attempt without a reward.
    """

    def __init__(self, settings: AgentSettings, base_dir: Path) -> None:
        """`base_dir` is the run file's folder."""
        self.settings, self.base_dir = settings, base_dir

    def check(self) -> None:
        """Called once before the run. Raises `UserError` where no attempt could work; an override calls this one too."""
        check_placeholders(list(self.settings.env.values()), PLACEHOLDERS, setting="agent.env")
        for name in self.settings.preload:
            if importlib.util.find_spec(name.partition(".")[0]) is None:
                raise UserError(f"agent.preload: no module '{name}' is installed where openforge runs ({sys.prefix})")
        template = self.base_dir / self.settings.workspace
        if self.settings.workspace != "temp" and not template.is_dir():
            raise UserError(f"agent.workspace: no folder {template}; write 'temp' or a folder of which each attempt gets a copy")

    async def agent_preprocess(self, context: AgentContext) -> None:
        """Prepare the attempt. This one copies `agent.workspace` and fills `context.env`; an override calls it first."""
        template = None if self.settings.workspace == "temp" else self.base_dir / self.settings.workspace
        await asyncio.to_thread(_fill, context.workspace, template)
        context.env |= environment(context, self.settings.dialect, self.settings.env)

    @abstractmethod
    async def agent_run(self, context: AgentContext) -> AgentResult:
        """Do the task, with every model call going to `context.base_url`."""

    async def agent_postprocess(self, context: AgentContext) -> None:  # noqa: B027 (optional)
        """Collect artefacts, clean up. Called however `agent_run` ended."""

    async def calculate_reward(self, context: AgentContext, result: AgentResult) -> Reward | None:
        """The attempt's reward; None leaves it to the run file's `reward` section."""
        return None


def _fill(workspace: Path, template: Path | None) -> None:
    if template is not None:
        shutil.copytree(template, workspace, symlinks=True, dirs_exist_ok=True)
    (workspace / ".tmp").mkdir(parents=True, exist_ok=True)
