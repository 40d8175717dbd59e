"""Google's Schema objects (ai.google.dev/api/caching#Schema) as JSON schema: the OpenAPI 3.0 subset that function declarations carry.

Invariant: names of properties and values given as examples or choices are never touched; only the schema's own words are.
"""

from __future__ import annotations

from typing import Any

from openforge.gateway.dialects.fields import camel_case

COUNTS = {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
"""int64 in Google's protocol, and so often sent as strings."""


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Upper-case types in lower case, `nullable` as a type, counts as integers, Google's ordering hint left out."""
    found = {key: _value(key, value) for key, value in camel_case(schema).items() if key not in ("nullable", "propertyOrdering")}
    if found.get("type") == "type_unspecified":
        del found["type"]
    if camel_case(schema).get("nullable") is True:
        _allow_null(found)
    return found


def _value(key: str, value: Any) -> Any:
    if key == "type" and isinstance(value, str):
        return value.lower()
    if key in ("properties", "defs", "$defs") and isinstance(value, dict):
        return {name: _schema(each) for name, each in value.items()}
    if key in ("items", "additionalProperties"):
        return _schema(value)
    if key in ("anyOf", "prefixItems") and isinstance(value, list):
        return [_schema(each) for each in value]
    if key in COUNTS and isinstance(value, str) and value.isdecimal():
        return int(value)
    return value


def _schema(value: Any) -> Any:
    return json_schema(value) if isinstance(value, dict) else value


def _allow_null(schema: dict[str, Any]) -> None:
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    if isinstance(schema.get("anyOf"), list):
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
