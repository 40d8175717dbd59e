"""What is wrong with a run file, in one line.

Invariant: the line names file, line and dotted key, and how to mend it; for an unknown key, the nearest known one.
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from openforge.run.yaml_file import YamlFile

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")


def explain(error: ValidationError, kind: type[BaseModel], file: YamlFile) -> str:
    """The first problem, unknown keys before all others: a misspelt key is often why another seems to be missing."""
    problems = [problem for problem in error.errors(include_url=False) if problem["type"] != "default_factory_not_called"]
    problems.sort(key=lambda problem: (problem["type"] not in _UNKNOWN, problem["type"] in _MISSING))
    first = problems[0]
    location = _in_file(first["loc"], file.data, first["type"] in _MISSING)
    dotted = ".".join(map(str, location))
    where = file.where(location)
    if first["type"] in _UNKNOWN:
        text = f"unknown key `{dotted}`: {_suggest(location, kind)}"
    elif first["type"] in _MISSING:
        text = f"`{dotted}` is missing: add it"
    else:
        message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
        given = first["input"]
        shown = f", but is {given!r}" if isinstance(given, str | int | float | bool | None) else ""
        text = f"`{dotted}`: {message}{shown}"
    more = len({problem["loc"][:2] for problem in problems[1:]} - {first["loc"][:2]})
    return f"{where}: {text}{f' (and {more} more)' if more else ''}"


def _in_file(location: Sequence[str | int], data: Any, missing: bool) -> list[str | int]:
    """The part of pydantic's location that is keys of the file: it also names members of unions."""
    found: list[str | int] = []
    for key in location:
        inside = (isinstance(data, dict) and key in data) or (isinstance(data, list) and isinstance(key, int) and key < len(data))
        if inside:
            data = data[key]
            found.append(key)
        elif missing and key == location[-1]:
            found.append(key)
    return found


def _suggest(location: Sequence[str | int], kind: type[Any]) -> str:
    *path, key = map(str, location)
    section: Any = kind
    for name in path:
        section = _section(_keys(section).get(name)) if section else None
    known = _keys(section) if section else {}
    prefix = ".".join(path) + "." if path else ""
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean `{prefix}{close[0]}`?"
    elsewhere = [dotted for dotted in _dotted(kind) if dotted.rpartition(".")[2] == key]
    if elsewhere:
        return f"did you mean `{elsewhere[0]}`?"
    return f"{f'`{prefix[:-1]}`' if path else 'a run file'} knows {', '.join(known)}"


def _keys(section: Any) -> dict[str, Any]:
    """The keys a section may have, with their types."""
    if issubclass(section, BaseModel):
        return {field.alias or name: field.annotation for name, field in section.model_fields.items()}
    return {name: kind for name, kind in typing.get_type_hints(section).items() if name in {f.name for f in dataclasses.fields(section)}}


def _section(annotation: Any) -> Any:
    """The section class in a type such as `Sft | None`, if there is one."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation)):
        return annotation
    return next(filter(None, map(_section, typing.get_args(annotation))), None)


def _dotted(section: Any, prefix: str = "") -> Iterator[str]:
    for name, annotation in _keys(section).items():
        yield prefix + name
        inner = _section(annotation)
        if inner:
            yield from _dotted(inner, f"{prefix}{name}.")
