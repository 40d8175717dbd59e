"""Between JSON and the bare text in which formats with tags write a parameter's value.

Invariant: what a value is, its tool's JSON schema decides, never its looks alone. A parameter that may only be a string is its text,
character by character. One that may also be something else is that where the text spells it ("value wins"): the string "5" and the number 5
look alike there, and no reader can tell them apart. Text that spells nothing the schema allows stays a string; nothing is dropped.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

from openforge.gateway.formats.json_text import read_json
from openforge.gateway.turn import Tool

ANY = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
MAX_DEPTH = 32
"""Of compositions and references followed in a schema."""


def read_arguments(text: str) -> dict[str, Any] | None:
    """A tool call's arguments, or None where a client has mangled them: no JSON object, or one that cannot be written again."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def to_json(value: object) -> str:
    """As chat templates write JSON (`tojson` of transformers)."""
    return json.dumps(value, ensure_ascii=False)


def function_schema(tool: Tool) -> str:
    """A tool as templates show it that print it with its outer type."""
    return to_json({"type": "function", "function": tool.record()})


class ArgumentTypes:
    """The JSON types that the parameters of one turn's tools may have."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._schemas = {tool.name: tool.parameters for tool in tools}

    def of(self, tool: str, parameter: str) -> frozenset[str]:
        root = self._schemas.get(tool, {})
        properties = root.get("properties")
        schema = properties.get(parameter) if isinstance(properties, dict) else None
        return _Schema(root).types(schema)


def typed(text: str, types: frozenset[str], *, python: bool = False) -> str:
    """The JSON of a value written as `text`, where `types` are allowed. `python`: the format writes Python's True, None and lists."""
    if types == {"string"}:
        return to_json(text)
    spelled = _spelled(text, python=python)
    if spelled is None:
        return to_json(text)
    value, written = spelled
    kinds = _kinds(value)
    if "string" in types and not kinds & types:
        return to_json(text)
    # 3.0 is an integer to JSON Schema, but not to every client that reads JSON.
    return str(int(value)) if isinstance(value, float) and kinds & types == {"integer"} else written


def _spelled(text: str, *, python: bool) -> tuple[object, str] | None:
    """The value other than a string that the text spells, and its JSON."""
    text = text.strip()
    try:
        value = read_json(text)
        return None if isinstance(value, str) else (value, text)
    except ValueError:
        pass
    if not python or not text.startswith(("[", "{", "True", "False", "None")):
        return None
    try:
        value = ast.literal_eval(text)
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
        return read_json(written), written
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _kinds(value: object) -> frozenset[str]:
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"integer", "number"} if value.is_integer() else {"number"})
        case list():
            return frozenset({"array"})
        case dict():
            return frozenset({"object"})
    return frozenset({"string"})


class _Schema:
    """A tool's schema; each reference in it is followed once, since references may form loops."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[str, frozenset[str]] = {}

    def types(self, schema: object, depth: int = 0) -> frozenset[str]:
        """The JSON types that a part of it allows."""
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return ANY
        found = ANY
        declared = schema.get("type")
        if isinstance(declared, str | list):
            found &= frozenset([declared] if isinstance(declared, str) else [kind for kind in declared if isinstance(kind, str)])
        if "const" in schema:
            found &= _kinds(schema["const"])
        if isinstance(schema.get("enum"), list):
            found &= frozenset().union(*map(_kinds, schema["enum"]))
        for word in ("anyOf", "oneOf"):
            if isinstance(schema.get(word), list):
                found &= frozenset().union(*(self.types(part, depth + 1) for part in schema[word]))
        for part in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
            found &= self.types(part, depth + 1)
        if isinstance(schema.get("$ref"), str):
            found &= self._referred(schema["$ref"], depth + 1)
        # A schema that allows nothing, or names no type we know, says nothing.
        return found or ANY

    def _referred(self, reference: str, depth: int) -> frozenset[str]:
        """The types of what a reference within the schema (`#/$defs/Name`) refers to."""
        if reference not in self._known:
            self._known[reference] = ANY
            found: object = self._root if reference.startswith("#") else None
            for key in reference[1:].split("/")[1:]:
                found = found.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
            self._known[reference] = self.types(found, depth)
        return self._known[reference]
