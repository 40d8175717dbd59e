"""Qwen Code (github.com/QwenLM/qwen-code): a coding agent descended from Gemini CLI; Chat Completions."""

from __future__ import annotations

from openforge.agents.adapters.base import NODE, Adapter, Wiring
from openforge.agents.context import AgentContext


def wire(context: AgentContext) -> Wiring:
    settings = {
        "general": {"enableAutoUpdate": False, "disableUpdateNag": True},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        # Nothing it remembers outlives the attempt.
        "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False, "enableAutoSkill": False},
        "model": {"generationConfig": {"contextWindowSize": context.context_length}},
    }
    return Wiring(
        options=["--auth-type", "openai", "--model", context.model, "--yolo"],
        task=[f"--prompt={context.task.instruction}"],
        files={".qwen/settings.json": settings},
    )


QWEN_CODE = Adapter(
    name="qwen-code", registry="npm", packages=("@qwen-code/qwen-code@0.24.4", NODE), program="qwen", dialect="chat", wire=wire
)
