"""From the `agent` section to an agent."""

from __future__ import annotations

from pathlib import Path

from openforge.agents.command import CommandAgent
from openforge.agents.context import PLACEHOLDERS
from openforge.agents.hooks import Agent
from openforge.agents.settings import AgentSettings
from openforge.runfile.commands import check_placeholders
from openforge.runfile.references import load_object
from openforge.types import UserError


def load_agent(settings: AgentSettings, base_dir: Path) -> Agent:
    """The agent, checked. `base_dir` is the run file's folder. Raises `UserError`."""
    check_placeholders(list(settings.env.values()), PLACEHOLDERS, setting="agent.env")
    if settings.workspace != "temp" and not (base_dir / settings.workspace).is_dir():
        raise UserError(f"agent.workspace: no folder {base_dir / settings.workspace}; give 'temp' or a folder to copy for each attempt")
    agent = CommandAgent(settings, base_dir) if settings.command is not None else _load_class(settings, base_dir)
    agent.check()
    return agent


def _load_class(settings: AgentSettings, base_dir: Path) -> Agent:
    assert settings.class_ is not None
    loaded = load_object(settings.class_, base_dir, setting="agent.class")
    if not (isinstance(loaded, type) and issubclass(loaded, Agent)):
        raise UserError(f"agent.class: '{settings.class_}' is no subclass of openforge.agents.Agent")
    try:
        return loaded()
    except Exception as error:
        raise UserError(f"agent.class: {settings.class_}() fails: {type(error).__name__}: {error}") from error
