"""What an adapter is: everything OpenForge knows of one real agent product.

Invariant: an adapter is data and one pure function. It installs nothing and starts nothing; `install.py` and `agent.py` do, the same way
for all of them. The agents themselves are never changed: all wiring is by their own arguments, variables and configuration files.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from openforge.agents.context import AgentContext
from openforge.agents.environment import Dialect

_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}
NODE = f"node-{platform.system().lower()}-{_MACHINES.get(platform.machine(), platform.machine())}@24.21.0"
"""Node.js as an npm package, for agents that need a newer one than distributions ship."""
PROGRAMS = Path(__file__).parent / "programs"
"""Small programs that use a framework as its documentation does, for frameworks that ship no program of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """How one attempt's agent is pointed at its model and its task."""

    options: list[str]
    task: list[str]
    """The arguments that give the instruction; they stand behind all others."""
    env: dict[str, str] = field(default_factory=dict)
    """Beside the variables of its dialect."""
    files: Mapping[str, Any] = field(default_factory=dict)
    """Path below HOME to what is written there as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    name: str
    """As the run file writes it."""
    registry: Literal["npm", "pypi"]
    packages: tuple[str, ...]
    """With exact versions; the first is the agent's own, others are what its wiring and its prompts hang on."""
    program: str
    """In the installation's folder of programs."""
    dialect: Dialect
    wire: Callable[[AgentContext], Wiring]
    """Called when `context.env` is filled, HOME being a folder of the attempt's own beside its workspace."""
    probe: tuple[str, ...] = ("--version",)
    """Arguments with which the program ends at once and well, if it works at all."""

    @property
    def takes_arguments(self) -> bool:
        """Whether a user's arguments reach the product itself: a library is started by a program of `PROGRAMS`, which knows none."""
        return self.program != "python"

    @property
    def version(self) -> str:
        return self.packages[0].rpartition("@" if self.registry == "npm" else "==")[2]
