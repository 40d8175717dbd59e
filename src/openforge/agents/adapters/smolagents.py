"""smolagents (github.com/huggingface/smolagents): a library of agents; here its ToolCallingAgent. Chat Completions, with stop strings."""

from __future__ import annotations

from openforge.agents.adapters.base import PROGRAMS, Adapter, Wiring
from openforge.agents.context import AgentContext


def wire(context: AgentContext) -> Wiring:
    return Wiring(options=[f"{PROGRAMS}/smolagents_agent.py"], task=[context.task.instruction])


SMOLAGENTS = Adapter(
    name="smolagents",
    registry="pypi",
    packages=("smolagents[openai]==1.26.0", "openai==3.57.0", "huggingface-hub==2.4.0"),
    program="python",
    dialect="chat",
    wire=wire,
    probe=("-c", "import smolagents, openai"),
)
