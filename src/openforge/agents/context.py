"""What surrounds one attempt: its workspace and its environment.

Invariant: attempts share no folder, and a workspace is gone when its attempt is over, however it ended.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from openforge.agents.hooks import AgentContext
from openforge.agents.settings import AgentSettings
from openforge.runfile.commands import base_environment, fill_placeholders
from openforge.types import Sandbox, Task

PLACEHOLDERS = ("base_url", "model", "instruction", "workspace", "api_key")

DIALECT_ENVIRONMENTS = {"chat": {"OPENAI_BASE_URL": "{base_url}", "OPENAI_API_KEY": "{api_key}", "OPENAI_MODEL": "{model}"}}
"""Dialect to the variables by which its clients find their model."""


def placeholder_values(context: AgentContext) -> dict[str, str]:
    return {
        "base_url": context.base_url,
        "model": context.model,
        "instruction": context.task.instruction,
        "workspace": str(context.workspace),
        "api_key": context.api_key,
    }


@asynccontextmanager
async def open_context(
    settings: AgentSettings,
    base_dir: Path,
    *,
    task: Task,
    rollout_id: str,
    base_url: str,
    api_key: str,
    model: str,
    sandbox: Sandbox,
    workspaces: Path,
    log_dir: Path | None = None,
) -> AsyncIterator[AgentContext]:
    """The context of one attempt; its workspace is `workspaces`/`rollout_id`. Raises OSError where that cannot be made."""
    workspace = (workspaces / rollout_id).absolute()
    await asyncio.to_thread(_create, workspace, None if settings.workspace == "temp" else base_dir / settings.workspace)
    try:
        context = AgentContext(
            task=task,
            rollout_id=rollout_id,
            workspace=workspace,
            base_url=base_url,
            api_key=api_key,
            model=model,
            env=base_environment(workspace),
            sandbox=sandbox,
            deadline=settings.deadline,
            log_dir=log_dir,
        )
        values = placeholder_values(context)
        declared = {**DIALECT_ENVIRONMENTS[settings.dialect], **settings.env}
        context.env |= {name: fill_placeholders(value, values) for name, value in declared.items()}
        yield context
    finally:
        await asyncio.to_thread(shutil.rmtree, workspace, ignore_errors=True)


def _create(workspace: Path, template: Path | None) -> None:
    shutil.rmtree(workspace, ignore_errors=True)  # left over where the controller was killed
    if template is None:
        workspace.mkdir(parents=True)
    else:
        shutil.copytree(template, workspace, symlinks=True)
    (workspace / ".tmp").mkdir(exist_ok=True)
