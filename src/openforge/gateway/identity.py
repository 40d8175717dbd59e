"""Whose request is this: by the rollout in the path, or by the API key; and who in the rollout is speaking, by the client's own headers.

Invariant: a request belongs to exactly one open rollout. A key of one rollout on the path of another is refused: one of them is a mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from openforge.gateway.dialects.base import ApiError
from openforge.types import Speaker

NO_QUERY: Mapping[str, str] = MappingProxyType({})


def identify(path_rollout: str | None, headers: Mapping[str, str], keys: Mapping[str, str], query: Mapping[str, str] = NO_QUERY) -> str:
    """The rollout's id. `keys` maps API key to open rollout. Raises ApiError 401 (no such key) or 403 (path and key disagree).

    On a path any unknown key passes: many agents insist on sending a made-up one.
    """
    owner = keys.get(api_key(headers, query))
    if path_rollout is None:
        if owner is None:
            raise ApiError(401, "unknown API key: no open rollout has it", type="authentication_error", code="invalid_api_key")
        return owner
    if owner not in (None, path_rollout):
        raise ApiError(403, "the API key belongs to another rollout than the path names", type="permission_error", code="rollout_mismatch")
    return path_rollout


def api_key(headers: Mapping[str, str], query: Mapping[str, str]) -> str:
    """The key from wherever the client's dialect puts it; "" where there is none."""
    bearer = headers.get("authorization", "")
    if bearer[:7].lower() == "bearer ":
        return bearer[7:].strip()
    return headers.get("x-api-key") or headers.get("x-goog-api-key") or query.get("key", "")


SESSIONS = ("x-claude-code-session-id", "session-id", "session_id", "conversation_id", "x-session-id")
PARENTS = ("x-claude-code-parent-agent-id", "x-codex-parent-thread-id", "x-parent-session-id")
PURPOSES = {
    "auxiliary": "auxiliary",
    "compaction": "compact",
    "compact": "compact",
    "memory": "memory",
    "memory_consolidation": "memory",
    "prewarm": "prewarm",
    "review": "review",
}
"""What clients call their calls' purposes, in our words. What is not here (`main`, `turn`, `collab_spawn`) is an agent's own work."""


def speaker(headers: Mapping[str, str]) -> Speaker:
    """What the client says of itself.

    Claude Code names its session on every request, and a sub-agent and the agent that started it on theirs (2.1.139 and later). Codex
    names the session and the thread, which differ in a sub-agent; older versions, and OpenCode, give a sub-agent a session of its own
    and name its parent. The purpose comes from Claude Code's hint headers, Codex's sub-agent header or its turn metadata.
    """
    session, parent = _first(headers, SESSIONS), _first(headers, PARENTS)
    thread = headers.get("thread-id") or session
    child = thread if thread != session or (parent and "x-claude-code-session-id" not in headers) else None
    tries = headers.get("x-stainless-retry-count", "")
    return Speaker(
        session=session,
        agent=headers.get("x-claude-code-agent-id") or child,
        parent=parent,
        purpose=_purpose(headers),
        retry=int(tries) if tries.isdecimal() else 0,
    )


def _first(headers: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := headers.get(name))), None)


def _purpose(headers: Mapping[str, str]) -> str | None:
    words = (headers.get("x-claude-code-request-class"), headers.get("x-openai-subagent"), _request_kind(headers))
    return next((PURPOSES[word] for word in words if word in PURPOSES), None)


def _request_kind(headers: Mapping[str, str]) -> str | None:
    """Codex's word for the kind of request: `turn`, `prewarm`, `compaction`, `memory`."""
    try:
        metadata = msgspec.json.decode(headers.get("x-codex-turn-metadata", "{}"))
    except msgspec.DecodeError:
        return None
    kind = metadata.get("request_kind") if isinstance(metadata, dict) else None
    return kind if isinstance(kind, str) else None
