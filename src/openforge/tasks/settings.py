"""The `tasks` section of a run file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from openforge.types import Settings


class TaskSettings(Settings):
    """Paths are relative to the run file."""

    train: Path
    eval: Path | dict[str, Path] = Field(default={})
    """A file, or files by the name under which their accuracy is reported."""
    weights: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(default={})
    """Domain to its share of the training tasks taken; empty: by the number of its tasks."""

    def eval_sets(self) -> dict[str, Path]:
        """Name to file; a single file goes by its stem."""
        return self.eval if isinstance(self.eval, dict) else {self.eval.stem: self.eval}
