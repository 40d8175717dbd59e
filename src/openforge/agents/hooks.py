"""The four hooks: everything the system asks of an agent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from openforge.types import AgentResult, Reward, Sandbox, Task


@dataclass(slots=True, kw_only=True)
class AgentContext:
    """One attempt as its agent sees it. `agent_preprocess` may change it; later hooks see the change."""

    task: Task
    rollout_id: str
    workspace: Path
    """The attempt's own folder, removed afterwards; `agent_run`'s program works in it."""
    base_url: str
    """The model's endpoint, this attempt's own; it ends in /v1 for the chat dialect."""
    api_key: str
    model: str
    env: dict[str, str]
    """The whole environment for programs the agent starts: a minimal base, the dialect's variables, the run file's `agent.env`."""
    sandbox: Sandbox
    deadline: float
    """Seconds the attempt has in all."""
    log_dir: Path | None = None
    """Where the program's stdout.log and stderr.log go."""


class Agent(ABC):
    """Subclass this for an agent in Python; one object serves all attempts, many at a time, so attempts' state belongs in the context.

    An exception in a hook ends the attempt as `agent_error`, a TimeoutError as `timeout`; an OSError of the sandbox is `env_error`.
    """

    def check(self) -> None:  # noqa: B027 (an optional hook)
        """Called once before the run. Raise `UserError` where no attempt could work."""

    async def agent_preprocess(self, context: AgentContext) -> None:  # noqa: B027
        """Prepare the workspace, the environment, the task's prompt."""

    @abstractmethod
    async def agent_run(self, context: AgentContext) -> AgentResult:
        """Do the task, with every model call going to `context.base_url`."""

    async def agent_postprocess(self, context: AgentContext, result: AgentResult) -> AgentResult:
        """Collect what the reward needs from the workspace, clean up."""
        return result

    async def calculate_reward(self, context: AgentContext, result: AgentResult) -> Reward | float | None:
        """The attempt's reward; None leaves it to the run file's `reward` section."""
        return None
