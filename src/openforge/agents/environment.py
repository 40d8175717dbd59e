"""What an agent's programs find around them: their variables, and the placeholders by which a run file tells them the rest.

Invariant: nothing in it speaks of training, and nothing comes from the parent's environment but what `base_environment` lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from openforge.agents.context import AgentContext
from openforge.runfile.commands import base_environment, fill_placeholders

PLACEHOLDERS = ("base_url", "model", "instruction", "workspace", "api_key", "context_length")

Dialect = Literal["chat", "responses", "messages", "gemini"]

_OPENAI = {"OPENAI_BASE_URL": "{base_url}", "OPENAI_API_KEY": "{api_key}", "OPENAI_MODEL": "{model}"}
DIALECT_VARIABLES: dict[Dialect, dict[str, str]] = {
    "chat": _OPENAI,
    "responses": _OPENAI,
    "messages": {"ANTHROPIC_BASE_URL": "{base_url}", "ANTHROPIC_API_KEY": "{api_key}", "ANTHROPIC_MODEL": "{model}"},
    "gemini": {"GOOGLE_GEMINI_BASE_URL": "{base_url}", "GEMINI_API_KEY": "{api_key}", "GEMINI_MODEL": "{model}"},
}
"""Dialect to the variables by which its clients find their model."""
BASE_PATHS: dict[Dialect, str] = {"chat": "/v1", "responses": "/v1", "messages": "", "gemini": ""}
"""What a dialect's clients expect at the end of a base URL; the rest of the path they add themselves."""


def placeholder_values(context: AgentContext) -> dict[str, str]:
    """The value of each of `PLACEHOLDERS` in this attempt."""
    return {
        "base_url": context.base_url,
        "model": context.model,
        "instruction": context.task.instruction,
        "workspace": str(context.workspace),
        "api_key": context.api_key,
        "context_length": str(context.context_length),
    }


def environment(context: AgentContext, dialect: Dialect, declared: Mapping[str, str]) -> dict[str, str]:
    """The minimal base, the dialect's variables, and `declared` with its placeholders filled; later ones win."""
    values = placeholder_values(context)
    variables = {**DIALECT_VARIABLES[dialect], **declared}
    return base_environment(context.workspace) | {name: fill_placeholders(value, values) for name, value in variables.items()}
