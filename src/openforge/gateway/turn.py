"""The canonical turn: what a model call asks, whatever dialect it came in.

Invariant: a dialect reads into these nouns and writes from them; a format renders them and parses into them. Neither knows of the other.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    """JSON schema of the arguments."""
    freeform: bool = False
    """The client wants raw text instead of JSON arguments: the model sees one string parameter, `input`, and the dialect unwraps it."""
    namespace: str | None = None
    """The client's name for the group the tool comes from; `name` is what the model sees, unique over all groups."""

    def record(self) -> dict[str, Any]:
        """As JSON for the call log."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str
    """JSON text, as the model wrote it or the client echoed it."""


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    """Fields no format renders, kept for the record."""

    @classmethod
    def from_record(cls, row: Mapping[str, Any]) -> Message:
        """What `record` wrote."""
        return cls(**{**row, "tool_calls": tuple(ToolCall(**call) for call in row.get("tool_calls", ()))})

    def record(self) -> dict[str, Any]:
        """As JSON for the call log: what is empty is left out."""
        row: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning:
            row["reasoning"] = self.reasoning
        if self.tool_calls:
            row["tool_calls"] = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in self.tool_calls]
        if self.tool_call_id is not None:
            row["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            row["name"] = self.name
        if self.extra:
            row["extra"] = self.extra
        return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request for a reply."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    model: str = ""
    stream: bool = False
    include_usage: bool = False
    """Whether a streamed reply ends with its token counts."""
    max_tokens: int | None = None
    """The client's own limit: it shortens the run's, never lengthens it."""
    stop: tuple[str, ...] = ()
    """The client's own stop strings, added to the run's."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Everything else the client sent (its sampling parameters, unknown fields): recorded, not obeyed."""


def new_tool_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def canonical_arguments(text: str) -> str:
    """JSON text as a comparable string: key order, spacing and 1.0 against 1 do not count. Text that is not JSON stands for itself."""
    try:
        return json.dumps(json.loads(text, parse_float=_number), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return text


def _number(text: str) -> float | int:
    value = float(text)
    return int(value) if value.is_integer() else value
