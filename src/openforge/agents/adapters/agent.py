"""An agent that is a known product: `agent: {adapter: NAME}`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

from openforge.agents.adapters import ADAPTERS
from openforge.agents.adapters.install import Installation, agents_folder
from openforge.agents.command import run_program
from openforge.agents.context import AgentContext
from openforge.agents.environment import environment
from openforge.agents.hooks import Agent
from openforge.agents.settings import AgentSettings
from openforge.types import AgentResult, UserError


class AdapterAgent(Agent):
    """Starts the installed product once an attempt, with a HOME of the attempt's own: beside its workspace, so that what the product keeps
    there is no part of the work, and removed with it."""

    def __init__(self, settings: AgentSettings, base_dir: Path) -> None:
        super().__init__(settings, base_dir)
        assert settings.adapter is not None
        self._adapter = ADAPTERS[settings.adapter]
        self._installation = Installation(self._adapter, agents_folder())

    def check(self) -> None:
        super().check()
        if not self._installation.complete:
            name, version = self._adapter.name, self._adapter.version
            raise UserError(f"agent.adapter: {name} {version} is not installed: run `openforge agents install {name}`")

    async def agent_preprocess(self, context: AgentContext) -> None:
        await super().agent_preprocess(context)
        home = _home(context)
        (home / "tmp").mkdir(parents=True)
        path = f"{self._installation.programs}{os.pathsep}{context.env['PATH']}"
        context.env |= {"HOME": str(home), "TMPDIR": str(home / "tmp"), "PATH": path}
        wiring = self._adapter.wire(context)
        for name, content in wiring.files.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        # The run file's own variables win over the adapter's.
        declared = environment(context, self.settings.dialect, self.settings.env)
        context.env |= wiring.env | {name: declared[name] for name in self.settings.env}

    async def agent_run(self, context: AgentContext) -> AgentResult:
        wiring = self._adapter.wire(context)
        return await run_program(context, [str(self._installation.program), *wiring.options, *self.settings.arguments, *wiring.task])

    async def agent_postprocess(self, context: AgentContext) -> None:
        await asyncio.to_thread(shutil.rmtree, _home(context), ignore_errors=True)


def _home(context: AgentContext) -> Path:
    return context.workspace.with_name(f"{context.workspace.name}.home")
