"""Sampling parameters: those that a run or an owner sets, checked, and those that a client itself asks for, where they count.

Invariant: a parameter that a client did not name is not among the client's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from openforge.gateway.dialects.base import BadRequest
from openforge.types import Sampling

UNLIMITED = 2**31 - 1
"""Tokens, where nobody has set a limit."""


def _plausible(sampling: Sampling) -> Sampling:
    checks = {
        "temperature must be a number of at least 0": 0 <= sampling.temperature < math.inf,
        "top_p must be above 0 and at most 1": 0 < sampling.top_p <= 1,
        "top_k must be at least 0 (0 is off)": sampling.top_k >= 0,
        "min_p must be at least 0 and below 1": 0 <= sampling.min_p < 1,
        "max_tokens must be at least 1": sampling.max_tokens >= 1,
    }
    for problem, fine in checks.items():
        if not fine:
            raise ValueError(problem)
    return sampling


CheckedSampling = Annotated[Sampling, AfterValidator(_plausible)]

_NUMBERS = {"temperature": "temperature", "top_p": "topP", "min_p": "minP"}
_INTEGERS = {"top_k": "topK", "seed": "seed"}


def client_parameters(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a turn's `fields` say, under the names of `types.Sampling`. Gemini nests them, with names of its own. Raises BadRequest."""
    nested = fields.get("generationConfig")
    source: Mapping[str, Any] = nested if isinstance(nested, dict) else fields
    found: dict[str, Any] = {}
    for names, kinds in ((_NUMBERS, (int, float)), (_INTEGERS, (int,))):
        for name, geminis in names.items():
            value = source.get(name, source.get(geminis))
            if value is None:
                continue
            if not isinstance(value, kinds) or isinstance(value, bool) or (value < 0 and name != "seed"):
                raise BadRequest(f"'{name}' must be a number of at least 0")
            found[name] = value
    return found


def client_sampling(fields: Mapping[str, Any]) -> Sampling:
    """As settings: what the client did not name is at its default, and the length is unlimited. Raises BadRequest."""
    return Sampling(max_tokens=UNLIMITED, **client_parameters(fields))
