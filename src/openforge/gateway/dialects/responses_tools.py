"""Tools of the OpenAI Responses API: functions, freeform (`custom`) tools, and namespaces of either.

Invariant: what the model calls is found again as the client named it. A namespaced tool is shown under a name that is unique over all
tools; a freeform tool is shown with one string parameter, and its calls travel as that string alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from openforge.gateway.dialects.base import BadRequest
from openforge.gateway.dialects.fields import read_array, read_object, read_string
from openforge.gateway.turn import Tool

FREEFORM = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"], "additionalProperties": False}


def read_tools(value: object) -> tuple[tuple[Tool, ...], list[dict[str, Any]]]:
    """The tools a client runs itself, and for the record those that OpenAI's servers would run. Raises BadRequest."""
    tools: list[Tool] = []
    others: list[dict[str, Any]] = []
    for i, item in enumerate(read_array(value, "tools")):
        row, where = read_object(item, f"tools[{i}]"), f"tools[{i}]"
        match row.get("type"):
            case "function" | "custom":
                tools.append(_tool(row, where))
            case "namespace":
                tools += _namespace(row, where)
            case _:
                others.append(row)
    _refuse_ambiguous(tools)
    return tuple(tools), others


def write_tools(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """Tools as a client would have sent them."""
    rows: list[dict[str, Any]] = []
    for namespace, group in groupby(tools, key=lambda tool: tool.namespace):
        members = [_row(tool) for tool in group]
        rows += members if namespace is None else [{"type": "namespace", "name": namespace, "description": "", "tools": members}]
    return rows


def shown_name(name: str, namespace: str | None) -> str:
    """What the model sees."""
    return f"{namespace}__{name}" if namespace else name


def own_name(tool: Tool) -> str:
    """What the client calls it within its namespace."""
    return tool.name.removeprefix(f"{tool.namespace}__") if tool.namespace else tool.name


def unwrap_input(arguments: str) -> str:
    """The text of a freeform call. Arguments without it are the text themselves: the client tells the model what is wrong with them."""
    text = (_object(arguments) or {}).get("input")
    return text if isinstance(text, str) else arguments


def wrap_input(text: str) -> str:
    """A freeform call's text as the arguments that the model wrote: the inverse of `unwrap_input`."""
    value = _object(text)
    misshapen = value is not None and not isinstance(value.get("input"), str)
    return text if misshapen else json.dumps({"input": text}, ensure_ascii=False)


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _namespace(row: dict[str, Any], where: str) -> Iterator[Tool]:
    namespace = read_string(row, "name", where)
    if not namespace:
        raise BadRequest(f"{where}.name is missing")
    about = read_string(row, "description", where)
    for i, item in enumerate(read_array(row.get("tools") or [], f"{where}.tools")):
        place = f"{where}.tools[{i}]"
        member = read_object(item, place)
        if member.get("type") not in ("function", "custom"):
            raise BadRequest(f"{place}.type: {member.get('type')!r} is not one of: function, custom")
        yield _tool(member, place, namespace, about)


def _tool(row: dict[str, Any], where: str, namespace: str | None = None, about: str = "") -> Tool:
    name = read_string(row, "name", where)
    if not name:
        raise BadRequest(f"{where}.name is missing")
    freeform = row["type"] == "custom"
    texts = [about, read_string(row, "description", where), _grammar(row, where) if freeform else ""]
    parameters = FREEFORM if freeform else read_object(row.get("parameters") or {}, f"{where}.parameters")
    return Tool(shown_name(name, namespace), "\n\n".join(filter(None, texts)), parameters, freeform, namespace)


def _grammar(row: dict[str, Any], where: str) -> str:
    """Sampling does not follow a grammar, so the model must know it."""
    format = read_object(row.get("format") or {}, f"{where}.format")
    definition = read_string(format, "definition", f"{where}.format")
    return f"The input must match this {read_string(format, 'syntax', f'{where}.format')} grammar:\n{definition}" if definition else ""


def _row(tool: Tool) -> dict[str, Any]:
    row = {"name": own_name(tool), "description": tool.description}
    if tool.freeform:
        return {"type": "custom", **row}
    return {"type": "function", **row, "parameters": tool.parameters, "strict": False}


def _refuse_ambiguous(tools: Iterable[Tool]) -> None:
    kinds: dict[str, tuple[str | None, bool]] = {}
    for tool in tools:
        kind = (tool.namespace, tool.freeform)
        if kinds.setdefault(tool.name, kind) != kind:
            raise BadRequest(f"tools: two of them are shown to the model as {tool.name!r}; rename one")
