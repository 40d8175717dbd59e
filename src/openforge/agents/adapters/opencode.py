"""OpenCode (github.com/anomalyco/opencode): a coding agent in the terminal; Chat Completions through its AI SDK provider.

Its title call fires before the main loop and offers no tools.
"""

from __future__ import annotations

from openforge.agents.adapters.base import Adapter, Wiring
from openforge.agents.context import AgentContext

_PROVIDER = "openforge"
_QUIET = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_SHARE": "1",
}


def wire(context: AgentContext) -> Wiring:
    limit = {"context": context.context_length, "output": context.context_length // 4}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": context.base_url, "apiKey": context.api_key},
        "models": {context.model: {"tool_call": True, "limit": limit}},
    }
    config = {"provider": {_PROVIDER: provider}, "permission": "allow", "share": "disabled", "autoupdate": False}
    # It puts quotes around an argument that has spaces and joins all with spaces, so the instruction goes in word by word.
    words = context.task.instruction.split(" ")
    return Wiring(
        options=["run", "--model", f"{_PROVIDER}/{context.model}"],
        task=["--", *words],
        env=_QUIET,
        files={".config/opencode/opencode.json": config},
    )


OPENCODE = Adapter(name="opencode", registry="npm", packages=("opencode-ai@1.18.33",), program="opencode", dialect="chat", wire=wire)
