from __future__ import annotations

import json
from pathlib import Path

import pytest

from openforge.bench.engine import run
from openforge.bench.frame import BenchResult, at_least, at_most, show
from openforge.types import UserError


def test_the_engine_benchmark_runs_on_a_tiny_model(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(None, 1, new_tokens=4, concurrency=(1, 8, 32))
    capsys.readouterr()
    show(result, as_json=True)
    content = json.loads(capsys.readouterr().out)
    assert set(content) == {"bench", "machine", "rows", "bars"}
    assert content["bench"] == "engine"
    assert [row["concurrent"] for row in content["rows"]] == [1, 8, 32]
    assert [bar["name"] for bar in content["bars"]] == ["vs_generate_8", "vs_generate_32"]


def test_a_missing_model_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model here"):
        run(tmp_path / "nowhere", 1)


def test_bars_and_table(capsys: pytest.CaptureFixture[str]) -> None:
    bars = [at_least("speed", 2.0, 1.5), at_most("delay", 3.0, 2.0)]
    assert [bar.ok for bar in bars] == [True, False]
    show(BenchResult("some", [{"what": "a", "value": 1.5}], bars))
    printed = capsys.readouterr().out
    assert "speed" in printed
    assert "MISS" in printed
