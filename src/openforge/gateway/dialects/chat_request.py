"""Chat Completions requests, written: for an upstream, and for transcripts.

Invariant: the dialect reads back the message and the tool that were written.
"""

from __future__ import annotations

from typing import Any

from openforge.gateway.turn import Message, Tool


def write_tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.parameters or {"type": "object", "properties": {}}}
    if tool.description:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def write_message(message: Message, *, extra: bool = False) -> dict[str, Any]:
    """`extra`: with the fields that only a chat client can have meant."""
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        row["content"] = message.content or None
        row["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in message.tool_calls
        ]
    if message.reasoning:
        row["reasoning_content"] = message.reasoning
    if message.tool_call_id is not None:
        row["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        row["name"] = message.name
    return {**message.extra, **row} if extra else row
