"""The `agent` section of a run file."""

from __future__ import annotations

from typing import Any, Self

from pydantic import ConfigDict, Field, model_validator

from openforge.agents.adapters import ADAPTERS
from openforge.agents.environment import Dialect
from openforge.runfile.durations import Seconds
from openforge.types import Settings


class AgentSettings(Settings):
    """Exactly one of `command` (any program), `class` (Python hooks) and `adapter` (an agent product that OpenForge knows)."""

    model_config = ConfigDict(validate_by_name=True)

    command: list[str] | None = None
    """The program and its arguments, with the placeholders {base_url} {model} {instruction} {workspace} {api_key}
    {context_length}; see `CommandAgent`."""
    class_: str | None = Field(None, alias="class")
    """`file.py:ClassName`, relative to the run file, or `module:ClassName`: a subclass of `Agent`."""
    adapter: str | None = None
    """A known agent, as `openforge agents list` names it; `openforge agents install` gets it."""
    arguments: list[str] = Field(default=[])
    """More arguments for the adapter's program, after its own."""
    dialect: Dialect = "chat"
    """What the agent speaks; an adapter knows it. Decides the variables that tell the agent its model. `chat` and `responses`:
    OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL; `messages`: ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY, ANTHROPIC_MODEL; `gemini`:
    GOOGLE_GEMINI_BASE_URL, GEMINI_API_KEY, GEMINI_MODEL."""
    deadline: Seconds = 300.0
    """Wall-clock time of one attempt, the agent's hooks together."""
    env: dict[str, str] = Field(default={})
    """More variables for the agent; values may use the placeholders. They win over the defaults."""
    preload: list[str] = Field(default=[])
    """Modules that take an agent written in Python long to import, e.g. [openai]: a command `python script.py …` then starts in a fork of a
    process that has them already. They must be safe to import before the agent's environment is known."""
    workspace: str = "temp"
    """`temp`: each attempt starts in an empty folder of its own. Otherwise a folder, relative to the run file: each attempt gets a copy."""

    @model_validator(mode="before")
    @classmethod
    def _adapter(cls, data: Any) -> Any:
        name = data.get("adapter") if isinstance(data, dict) else None
        if name is None:
            return data
        if name not in ADAPTERS:
            raise ValueError(f"no adapter '{name}'; there are: {', '.join(ADAPTERS)}")
        dialect = ADAPTERS[name].dialect
        if data.get("dialect", dialect) != dialect:
            raise ValueError(f"{name} speaks {dialect}; leave 'dialect' out")
        return {**data, "dialect": dialect}

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if [self.command, self.class_, self.adapter].count(None) != 2:
            raise ValueError("give exactly one of 'command', 'class' and 'adapter'")
        if self.arguments and self.adapter is None:
            raise ValueError("'arguments' are an adapter's; write a command's into 'command'")
        if self.arguments and not ADAPTERS[self.adapter or ""].takes_arguments:
            raise ValueError(f"{self.adapter} is a library and takes no 'arguments'; write a program of your own and name it in 'command'")
        return self
