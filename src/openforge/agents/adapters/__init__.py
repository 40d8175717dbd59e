"""Agent products that OpenForge knows how to install and to start; one file each.

Invariant: each is used as its makers publish it. Nothing here patches an agent or carries any of its makers' text.
"""

from openforge.agents.adapters.base import Adapter, Wiring
from openforge.agents.adapters.claude_code import CLAUDE_CODE
from openforge.agents.adapters.mini_swe_agent import MINI_SWE_AGENT
from openforge.agents.adapters.opencode import OPENCODE
from openforge.agents.adapters.pi import PI
from openforge.agents.adapters.qwen_code import QWEN_CODE

__all__ = ["ADAPTERS", "Adapter", "Wiring"]

ADAPTERS = {adapter.name: adapter for adapter in (CLAUDE_CODE, MINI_SWE_AGENT, OPENCODE, PI, QWEN_CODE)}
