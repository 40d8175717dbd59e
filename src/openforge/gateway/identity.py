"""Whose request is this: by the rollout in the path, or by the API key; and who in the rollout is speaking, by the client's own headers.

Invariant: a request belongs to exactly one open rollout. A key of one rollout on the path of another is refused: one of them is a mistake.
"""

from __future__ import annotations

from collections.abc import Mapping

from openforge.gateway.dialects.base import ApiError
from openforge.types import Speaker


def identify(path_rollout: str | None, headers: Mapping[str, str], keys: Mapping[str, str]) -> str:
    """The rollout's id. `keys` maps API key to open rollout. Raises ApiError 401 (no such key) or 403 (path and key disagree).

    On a path any unknown key passes: many agents insist on sending a made-up one.
    """
    bearer = headers.get("authorization", "")
    key = bearer[7:].strip() if bearer[:7].lower() == "bearer " else headers.get("x-api-key", "")
    owner = keys.get(key)
    if path_rollout is None:
        if owner is None:
            raise ApiError(401, "unknown API key: no open rollout has it", type="authentication_error", code="invalid_api_key")
        return owner
    if owner not in (None, path_rollout):
        raise ApiError(403, "the API key belongs to another rollout than the path names", type="permission_error", code="rollout_mismatch")
    return path_rollout


def speaker(headers: Mapping[str, str]) -> Speaker:
    """What the client says of itself."""
    tries = headers.get("x-stainless-retry-count", "")
    return Speaker(
        session=headers.get("x-claude-code-session-id") or headers.get("session_id"),
        agent=headers.get("x-claude-code-agent-id"),
        parent=headers.get("x-claude-code-parent-agent-id"),
        purpose=headers.get("x-openai-subagent"),
        retry=int(tries) if tries.isdecimal() else 0,
    )
