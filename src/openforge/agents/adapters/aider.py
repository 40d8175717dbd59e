"""aider (aider.chat): edits files by search and replace in its reply's text, without tools; Chat Completions through litellm, streamed."""

from __future__ import annotations

from openforge.agents.adapters.base import Adapter, Wiring
from openforge.agents.context import AgentContext


def wire(context: AgentContext) -> Wiring:
    model = f"openai/{context.model}"
    history = f"{context.env['HOME']}/history"
    limits = {model: {"max_input_tokens": context.context_length, "max_tokens": context.context_length, "litellm_provider": "openai"}}
    quiet = ["--no-check-update", "--no-show-release-notes", "--no-show-model-warnings", "--analytics-disable", "--no-detect-urls"]
    return Wiring(
        options=[
            *("--model", model, "--weak-model", model, "--yes-always", "--no-git", "--no-pretty", *quiet),
            *("--input-history-file", history, "--chat-history-file", f"{history}.md"),
            *("--model-metadata-file", f"{context.env['HOME']}/models.json"),
        ],
        task=[f"--message={context.task.instruction}"],
        env={"OPENAI_API_BASE": context.base_url, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        files={"models.json": limits},
    )


AIDER = Adapter(name="aider", registry="pypi", packages=("aider-chat==0.86.2",), program="aider", dialect="chat", wire=wire)
