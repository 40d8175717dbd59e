"""OpenAI Agents SDK (github.com/openai/openai-agents-python): Responses, unstreamed."""

from __future__ import annotations

from openforge.agents.adapters.base import PROGRAMS, Adapter, Wiring
from openforge.agents.context import AgentContext


def wire(context: AgentContext) -> Wiring:
    return Wiring(
        options=[f"{PROGRAMS}/openai_agents_agent.py"],
        task=[context.task.instruction],
        env={"OPENAI_AGENTS_DISABLE_TRACING": "1"},
    )


OPENAI_AGENTS = Adapter(
    name="openai-agents",
    registry="pypi",
    packages=("openai-agents==0.24.0", "openai==3.57.0"),
    program="python",
    dialect="responses",
    wire=wire,
    probe=("-c", "import agents"),
)
