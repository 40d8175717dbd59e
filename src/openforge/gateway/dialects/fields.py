"""Fields of a client's JSON, read with their types; a wrong one is a BadRequest that says where.

Invariant: nothing here knows a dialect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from openforge.gateway.dialects.base import BadRequest


def read_object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest(f"{where} must be an object")
    return value


def read_array(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadRequest(f"{where} must be an array")
    return value


def read_string(row: dict[str, Any], key: str, where: str = "") -> str:
    """A string; "" where it is missing or null."""
    value = row.get(key)
    if value is not None and not isinstance(value, str):
        raise BadRequest(f"{where}{'.' if where else ''}{key} must be a string")
    return value or ""


def read_limit(row: dict[str, Any], keys: Iterable[str]) -> int | None:
    """The least of the positive integers under `keys`."""
    limits: list[int] = []
    for key in keys:
        value = row.get(key)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise BadRequest(f"'{key}' must be a positive integer")
        limits.append(value)
    return min(limits, default=None)


def read_strings(value: object, where: str) -> tuple[str, ...]:
    """A string or an array of strings; empty ones are left out."""
    values = [value] if isinstance(value, str) else value if value is not None else []
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise BadRequest(f"{where} must be a string or an array of strings")
    return tuple(each for each in values if each)


def camel_case(row: dict[str, Any]) -> dict[str, Any]:
    """The same fields with snake_case names in camelCase; values are not looked into."""
    return {re.sub("_([a-z])", lambda found: found[1].upper(), key) if "_" in key else key: value for key, value in row.items()}
