"""One attempt at a task, as its agent sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from openforge.types import Sandbox, Task


@dataclass(slots=True, kw_only=True)
class AgentContext:
    """What the hooks of one attempt share. `agent_preprocess` may change it; later hooks see the change."""

    task: Task
    rollout_id: str
    workspace: Path
    """The attempt's own folder, absolute and empty at first, removed when the attempt is over; the agent's program works in it."""
    base_url: str
    """The model's endpoint, this attempt's own, as the agent's dialect wants it: it ends in /v1 for `chat` and `responses`."""
    api_key: str
    model: str
    context_length: int
    """Tokens of prompt and reply together that the model takes."""
    sandbox: Sandbox
    env: dict[str, str] = field(default_factory=dict)
    """The whole environment of the programs the agent starts; `Agent.agent_preprocess` fills it."""
    deadline: float | None = None
    """Seconds after which the sandbox kills the agent's program; None where only the caller keeps the time, by cancelling."""
    log_dir: Path | None = None
    """Where the program's stdout.log and stderr.log go; None keeps none."""
