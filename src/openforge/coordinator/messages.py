"""What a recorded call said: its conversation and its tools, put together along its parents.

Invariant: a call stores only what its parent does not, so nothing here is read from one call alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openforge.coordinator.record import ancestry
from openforge.types import Call


def conversation(calls: Mapping[str, Call], id: str) -> list[dict[str, Any]]:
    """The messages of a call as recorded; the last is its reply. `calls`: those of its rollout, by id."""
    rows: list[dict[str, Any]] = []
    for call in (calls[id] for id in reversed(ancestry(calls, id))):
        del rows[call.request.get("messages_shared", 0) :]
        rows += [*call.request.get("messages", ()), call.response]
    return rows


def offered_tools(calls: Mapping[str, Call], id: str) -> list[dict[str, Any]]:
    """The tools of a call as recorded: its root's, for a call with a parent has its parent's."""
    return list(calls[ancestry(calls, id)[-1]].request.get("tools", ()))
