from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from openforge.runfile.durations import Seconds

SECONDS = TypeAdapter(Seconds)


@pytest.mark.parametrize(
    ("written", "seconds"), [("60s", 60), ("5m", 300), ("2h", 7200), ("500ms", 0.5), ("1.5 m", 90), (90, 90), (0.25, 0.25), ("30", 30)]
)
def test_durations_are_seconds(written: object, seconds: float) -> None:
    assert SECONDS.validate_python(written) == pytest.approx(seconds)


@pytest.mark.parametrize("written", ["", "soon", "5 fortnights", "-1s", 0, -3, "0s", float("nan"), float("inf"), "inf", "s", None])
def test_everything_else_is_refused(written: object) -> None:
    with pytest.raises(ValidationError):
        SECONDS.validate_python(written)
