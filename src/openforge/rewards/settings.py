"""The `reward` section of a run file."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from openforge.runfile.durations import Seconds
from openforge.types import Settings


class RewardSettings(Settings):
    """Exactly one of `function` and `command`."""

    function: str | None = None
    """`file.py:name`, relative to the run file, or `module:name`; see `FunctionReward`."""
    command: list[str] | None = None
    """A program and its arguments; see `CommandReward`."""
    timeout: Seconds = 60.0
    """Wall-clock time of one reward."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.function is None) == (self.command is None):
            raise ValueError("give exactly one of 'function' and 'command'")
        return self
