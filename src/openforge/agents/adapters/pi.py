"""Pi (github.com/earendil-works/pi): a small coding agent with four tools; Chat Completions, always streamed."""

from __future__ import annotations

from openforge.agents.adapters.base import NODE, Adapter, Wiring
from openforge.agents.context import AgentContext

_PROVIDER = "openforge"


def wire(context: AgentContext) -> Wiring:
    model = {"id": context.model, "contextWindow": context.context_length, "maxTokens": context.context_length // 4}
    provider = {"baseUrl": context.base_url, "api": "openai-completions", "apiKey": context.api_key, "models": [model]}
    # Pi's own margins suit windows of 100k tokens and more.
    margin, kept = min(16_384, context.context_length // 4), min(20_000, context.context_length // 4)
    return Wiring(
        options=["--print", "--offline", "--no-session", "--model", f"{_PROVIDER}/{context.model}"],
        task=["--", context.task.instruction],
        env={"PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1"},
        files={
            ".pi/agent/models.json": {"providers": {_PROVIDER: provider}},
            ".pi/agent/settings.json": {"compaction": {"reserveTokens": margin, "keepRecentTokens": kept}},
        },
    )


PI = Adapter(name="pi", registry="npm", packages=("@earendil-works/pi-coding-agent@1.6.0", NODE), program="pi", dialect="chat", wire=wire)
