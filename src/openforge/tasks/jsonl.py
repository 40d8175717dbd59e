"""Tasks as JSON lines: one object a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openforge.types import Task, UserError


def load_tasks(path: Path) -> list[Task]:
    """The file's tasks in order; at least one.

    A line has `instruction` and may have `id` (else the file's stem and the line's number, `train-17`) and `domain`, all non-empty strings;
    every other key goes to `Task.data`. Blank lines are skipped. Raises `UserError` with file and line.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; tasks are UTF-8 JSON lines") from error
    except OSError as error:
        raise UserError(f"{path}: cannot read the tasks: {error.strerror}") from error
    tasks: list[Task] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        task = _task(line, f"{path}:{number}", f"{path.stem}-{number}")
        if task.id in seen:
            raise UserError(f"{path}:{number}: the id '{task.id}' is line {seen[task.id]}'s already; ids must differ")
        seen[task.id] = number
        tasks.append(task)
    if not tasks:
        raise UserError(f"{path}: no tasks in it; write one JSON object a line with an 'instruction'")
    return tasks


def _task(line: str, where: str, default_id: str) -> Task:
    try:
        fields: Any = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise UserError(f"{where}: a task is a JSON object, not {type(fields).__name__}")
    if "instruction" not in fields:
        raise UserError(f"{where}: no 'instruction'; it has {', '.join(map(repr, fields)) or 'no keys'}")
    texts = {"id": default_id, "domain": "default"} | {key: fields.pop(key) for key in ("id", "domain", "instruction") if key in fields}
    for key, text in texts.items():
        if not isinstance(text, str) or not text or "\0" in text:
            raise UserError(f"{where}: '{key}' must be a non-empty string without NUL")
    return Task(**texts, data=fields)
