"""Codex CLI (github.com/openai/codex): OpenAI's coding agent; Responses, always streamed, stateless."""

from __future__ import annotations

import json

from openforge.agents.adapters.base import Adapter, Wiring
from openforge.agents.context import AgentContext


def wire(context: AgentContext) -> Wiring:
    provider = "model_providers.openforge"
    config = {
        "model_provider": "openforge",
        f"{provider}.name": "OpenForge",
        f"{provider}.base_url": context.base_url,
        f"{provider}.env_key": "OPENAI_API_KEY",
        f"{provider}.wire_api": "responses",
        "model_context_window": context.context_length,
        # A login shell would read the machine's profile and lose the attempt's PATH.
        "allow_login_shell": False,
        "analytics.enabled": False,
        "check_for_update_on_startup": False,
    }
    # Values are TOML, of which JSON strings, numbers and booleans are a part.
    settings = [part for key, value in config.items() for part in ("--config", f"{key}={json.dumps(value)}")]
    options = ["--skip-git-repo-check", "--ephemeral", "--dangerously-bypass-approvals-and-sandbox", "--model", context.model]
    return Wiring(options=["exec", *settings, *options], task=["--", context.task.instruction])


CODEX = Adapter(name="codex", registry="npm", packages=("@openai/codex@0.171.0",), program="codex", dialect="responses", wire=wire)
