"""LangGraph (github.com/langchain-ai/langgraph) with LangChain's chat models: ChatOpenAI drops reasoning, ChatAnthropic keeps it."""

from __future__ import annotations

from openforge.agents.adapters.base import PROGRAMS, Adapter, Wiring
from openforge.agents.context import AgentContext
from openforge.agents.environment import Dialect


def _adapter(name: str, dialect: Dialect, client: str, sdk: str) -> Adapter:
    def wire(context: AgentContext) -> Wiring:
        return Wiring(
            options=[f"{PROGRAMS}/langgraph_agent.py", dialect], task=[context.task.instruction], env={"LANGSMITH_TRACING": "false"}
        )

    return Adapter(
        name=name,
        registry="pypi",
        packages=("langgraph==1.2.24", "langchain==1.5.2", "langchain-core==1.8.3", client, sdk),
        program="python",
        dialect=dialect,
        wire=wire,
        probe=("-c", f"import langchain.agents, {client.partition('==')[0].replace('-', '_')}"),
    )


LANGGRAPH_OPENAI = _adapter("langgraph-openai", "chat", "langchain-openai==1.7.4", "openai==3.57.0")
LANGGRAPH_ANTHROPIC = _adapter("langgraph-anthropic", "messages", "langchain-anthropic==1.7.10", "anthropic==2.14.0")
