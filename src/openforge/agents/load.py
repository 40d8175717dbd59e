"""From the `agent` section to an agent."""

from __future__ import annotations

from pathlib import Path

from openforge.agents.adapters.agent import AdapterAgent
from openforge.agents.command import CommandAgent
from openforge.agents.hooks import Agent
from openforge.agents.settings import AgentSettings
from openforge.runfile.references import load_object
from openforge.types import UserError


def load_agent(settings: AgentSettings, base_dir: Path) -> Agent:
    """The agent; the caller calls its `check`. `base_dir` is the run file's folder. Raises `UserError`."""
    if settings.command is not None:
        return CommandAgent(settings, base_dir)
    if settings.adapter is not None:
        return AdapterAgent(settings, base_dir)
    assert settings.class_ is not None
    loaded = load_object(settings.class_, base_dir, setting="agent.class")
    if not (isinstance(loaded, type) and issubclass(loaded, Agent)):
        raise UserError(f"agent.class: '{settings.class_}' is no subclass of openforge.agents.Agent")
    try:
        return loaded(settings, base_dir)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"agent.class: making a {loaded.__name__} fails: {type(error).__name__}: {error}") from error
