"""YAML with its line numbers.

Invariant: what `Dumper` writes, `read_yaml` reads back as the same values. Both take `1e-5` for a number, which YAML 1.1 alone would not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from openforge.types import UserError


class Dumper(yaml.SafeDumper):
    pass


class _Loader(yaml.SafeLoader):
    pass


for _each in (Dumper, _Loader):
    _each.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789"))


@dataclass(frozen=True, slots=True)
class YamlFile:
    path: Path
    data: dict[str, Any]
    node: yaml.Node | None
    """The parsed document with its positions."""

    def where(self, location: Sequence[str | int]) -> str:
        """`file:line` of the deepest part of `location` that the file holds; `file` alone for what it does not hold at all."""
        line, node = None, self.node
        for key in location:
            found = None
            if isinstance(node, yaml.MappingNode):
                found = next(((name, value) for name, value in node.value if name.value == str(key)), None)
            elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
                found = (node.value[key], node.value[key])
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        return f"{self.path}:{line}" if line else str(self.path)


def read_yaml(path: Path) -> YamlFile:
    """Read a file that holds one mapping. Raises `UserError` for one that is missing, is no YAML, or names a key twice."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"there is no run file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        _refuse_twice(node, path)
        data = loader.construct_document(node) if node else {}
    except yaml.YAMLError as error:
        raise UserError(_yaml_error(error, str(path))) from None
    finally:
        loader.dispose()
    if not isinstance(data, dict):
        raise UserError(f"{path} holds no mapping: a run file is made of `key: value` lines")
    return YamlFile(path, data, node)


def read_value(text: str, where: str) -> Any:
    """One YAML value, such as `0.3` or `[a, b]`."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise UserError(_yaml_error(error, where)) from None


def _yaml_error(error: yaml.YAMLError, where: str) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
    return f"{where}{f':{mark.line + 1}' if mark else ''}: not valid YAML: {' '.join(problem.split())}"


def _refuse_twice(node: yaml.Node | None, path: Path) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:
                raise UserError(f"{path}:{line}: `{key.value}` is given twice, first in line {seen[key.value]}: remove one")
            seen[str(key.value)] = line
            _refuse_twice(value, path)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_twice(value, path)
