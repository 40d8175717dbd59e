"""The metrics of a run: one JSON object a line, and the same numbers in TensorBoard.

Invariant: a line is complete or it is the last one. A writer cuts a torn tail before it appends, and a resumed run first moves the rows of
steps it will do again to `metrics.superseded.jsonl`, so that every step appears once and no row is ever lost.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from openforge.run.rundir import RunDir
from openforge.types import UserError

Row = dict[str, Any]


class MetricsWriter:
    """Appends rows, each flushed to the operating system before `write` returns."""

    def __init__(self, run_dir: RunDir) -> None:
        self.path = path = run_dir.metrics
        self._folder = run_dir.tensorboard
        self._purge_step: int | None = None
        self._board: Any = None
        _cut_torn_tail(path)
        self._file = path.open("a", encoding="utf-8")

    def write(self, row: Mapping[str, Any]) -> Row:
        """Record a row (with at least `kind` and `step`; `time` is added). Numbers that are not finite become null: JSON has no other word.

        Returns the row as it was written.
        """
        clean: Row = _plain({"kind": "step", "time": time.time(), **row})
        self._file.write(json.dumps(clean, allow_nan=False) + "\n")
        self._file.flush()
        board, step = self._tensorboard(), clean.get("sft_step", clean["step"])
        prefix = "/".join(str(clean[key]) for key in ("kind", "set") if clean.get(key))
        for name, value in _scalars(clean):
            board.add_scalar(f"{prefix}/{name}", value, step, walltime=clean["time"])
        board.flush()
        return clean

    def rewind(self, step: int) -> int:
        """Before a resume from the checkpoint after `step`: move the rows of later steps out. Returns how many there were."""
        rows = read_metrics(self.path)
        late = [row["step"] > step for row in rows]
        self._purge_step = step + 1
        if any(late):
            # Copy first, replace second: a crash in between leaves a row twice, never nowhere.
            with self.path.with_suffix(".superseded.jsonl").open("a", encoding="utf-8") as superseded:
                superseded.writelines(json.dumps(row) + "\n" for row, is_late in zip(rows, late, strict=True) if is_late)
                superseded.flush()
                os.fsync(superseded.fileno())
            kept = self.path.with_suffix(".tmp")
            with kept.open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row, is_late in zip(rows, late, strict=True) if not is_late)
                file.flush()
                os.fsync(file.fileno())
            self._file.close()
            kept.replace(self.path)
            self._file = self.path.open("a", encoding="utf-8")
        return sum(late)

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tensorboard(self) -> Any:
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter  # a second of imports that reading metrics does not need

            self._board = SummaryWriter(str(self._folder), purge_step=self._purge_step)
        return self._board


def read_metrics(path: Path) -> list[Row]:
    """All complete rows in order; a torn last line (the process was killed while it wrote) is left out. A missing file has no rows."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            raise UserError(f"{path}:{number} is not a JSON object: mend or remove the line") from None
    return rows


def _cut_torn_tail(path: Path) -> None:
    if path.exists():
        data = path.read_bytes()
        if not data.endswith(b"\n"):
            os.truncate(path, data.rfind(b"\n") + 1)


def _plain(value: Any) -> Any:
    """JSON's own types only: numpy and torch scalars become Python's, a number that is not finite becomes None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, int | float | str | None) else str(value)


def _scalars(row: Row, prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in row.items():
        if isinstance(value, dict):
            yield from _scalars(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not (prefix == "" and key in ("step", "sft_step", "time")):
            yield prefix + key, float(value)
