"""Spans of time as people write them in a run file."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")


def _seconds(value: Any) -> Any:
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        return float(match[1]) * _UNITS[match[2]]
    return value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0, allow_inf_nan=False)]
"""Seconds as a float; reads 90, 1.5, "500ms", "60s", "5m" and "2h"."""
