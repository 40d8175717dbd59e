"""mini-swe-agent (github.com/SWE-agent/mini-swe-agent): one bash tool, a linear history; Chat Completions through litellm, unstreamed.

A reply without a well-formed tool call is dropped from its history: what follows is a fork.
"""

from __future__ import annotations

from openforge.agents.adapters.base import Adapter, Wiring
from openforge.agents.context import AgentContext


def wire(context: AgentContext) -> Wiring:
    return Wiring(
        options=["--yolo", "--exit-immediately", "--model", f"openai/{context.model}"],
        task=[f"--task={context.task.instruction}"],
        # Without a known price it would stop before the first call; unless told that it is set up, it would ask.
        env={
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_SILENT_STARTUP": "1",
        },
    )


MINI_SWE_AGENT = Adapter(
    name="mini-swe-agent",
    registry="pypi",
    packages=("mini-swe-agent==2.4.6", "litellm==1.110.2", "openai==3.57.0"),
    program="mini",
    dialect="chat",
    wire=wire,
    probe=("--help",),
)
