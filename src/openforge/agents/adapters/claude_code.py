"""Claude Code (code.claude.com): Anthropic's coding agent; Messages, streamed, with sub-agents, thinking and compaction of its own."""

from __future__ import annotations

from openforge.agents.adapters.base import Adapter, Wiring
from openforge.agents.context import AgentContext

_QUIET = {
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    # What runs in the background dies when the answer is printed.
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_TERMINAL_TITLE": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
}


def wire(context: AgentContext) -> Wiring:
    models = (
        "ANTHROPIC_DEFAULT_OPUS_MODEL",
        "ANTHROPIC_DEFAULT_SONNET_MODEL",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL",
        "CLAUDE_CODE_SUBAGENT_MODEL",
    )
    return Wiring(
        options=["--print", "--model", context.model, "--dangerously-skip-permissions"],
        task=["--", context.task.instruction],
        env={
            **_QUIET,
            **dict.fromkeys(models, context.model),
            "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(context.context_length),
            # As root it refuses to skip permissions, unless it is told that somebody else keeps the walls.
            "IS_SANDBOX": "1",
        },
    )


CLAUDE_CODE = Adapter(
    name="claude-code", registry="npm", packages=("@anthropic-ai/claude-code@2.1.332",), program="claude", dialect="messages", wire=wire
)
