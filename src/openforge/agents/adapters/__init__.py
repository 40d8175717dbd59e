"""Agent products that OpenForge knows how to install and to start; one file each.

Invariant: each is used as its makers publish it. Nothing here patches an agent or carries any of its makers' text.
"""

from openforge.agents.adapters.aider import AIDER
from openforge.agents.adapters.base import Adapter, Wiring
from openforge.agents.adapters.claude_code import CLAUDE_CODE
from openforge.agents.adapters.codex import CODEX
from openforge.agents.adapters.langgraph import LANGGRAPH_ANTHROPIC, LANGGRAPH_OPENAI
from openforge.agents.adapters.mini_swe_agent import MINI_SWE_AGENT
from openforge.agents.adapters.openai_agents import OPENAI_AGENTS
from openforge.agents.adapters.opencode import OPENCODE
from openforge.agents.adapters.pi import PI
from openforge.agents.adapters.qwen_code import QWEN_CODE
from openforge.agents.adapters.smolagents import SMOLAGENTS

__all__ = ["ADAPTERS", "Adapter", "Wiring"]

_PRODUCTS = (CLAUDE_CODE, CODEX, OPENCODE, QWEN_CODE, PI, MINI_SWE_AGENT, AIDER)
_LIBRARIES = (SMOLAGENTS, OPENAI_AGENTS, LANGGRAPH_OPENAI, LANGGRAPH_ANTHROPIC)
ADAPTERS = {adapter.name: adapter for adapter in (*_PRODUCTS, *_LIBRARIES)}
