from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openforge.agents import AgentContext
from openforge.sandbox import ProcessSandbox
from openforge.types import Task


@pytest.fixture
def make_context(tmp_path: Path) -> Callable[..., AgentContext]:
    """A context with a fresh workspace; keywords replace its fields."""

    def make(instruction: str = "Say hello.", **fields: Any) -> AgentContext:
        workspace = tmp_path / "workspaces" / "r1"
        workspace.mkdir(parents=True)
        defaults: dict[str, Any] = {
            "task": Task(id="t", instruction=instruction),
            "rollout_id": "r1",
            "workspace": workspace,
            "base_url": "http://127.0.0.1:1/r/r1/v1",
            "api_key": "key-1",
            "model": "calculator",
            "context_length": 8192,
            "sandbox": ProcessSandbox(),
        }
        return AgentContext(**{**defaults, **fields})

    return make
