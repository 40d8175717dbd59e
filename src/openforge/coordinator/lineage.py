"""What a lineage is: calls of one rollout that belong together, and who speaks in them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from openforge.types import LineageKind


class Evidence(enum.StrEnum):
    """What a lineage's kind follows from; the first that says anything decides."""

    IDS = "ids"
    """The client's own names for sessions, agents and purposes."""
    PREFIX = "prefix"
    """What a prompt keeps of an earlier call's sequence."""
    RULE = "rule"
    """Text that was handed on, tools, size."""


@dataclass(frozen=True, slots=True)
class Lineage:
    kind: LineageKind
    call_ids: list[str]
    """A chain: each call's prompt begins with the whole sequence of the call before it."""
    of: str | None = None
    """The call it belongs to: whose tool call started the sub-agent, what a continuation goes on from, which call answered instead of a
    retry, what an orphan branched off. None where that is not known, and for the main lineage."""
    purpose: str | None = None
    """What it is for, in one word, if that is not the agent's work itself: `title`, `summary`, `count_tokens`, `compact`, …"""
    evidence: Evidence = Evidence.PREFIX
