from __future__ import annotations

from pathlib import Path

import pytest

from openforge.bench.gateway import run
from openforge.types import UserError

MODEL = Path(__file__).parents[2] / "models" / "smollm2-135m-instruct"


@pytest.mark.slow
def test_the_gateway_benchmark_measures_the_gateway_and_the_bare_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openforge.bench.gateway.shutil.which", lambda _: None)
    # as many calls as take some processor time on a clock of 10 ms
    result = run(MODEL, 1, shapes=((2, 50), (2, 200)), calls=16)
    assert [(row["server"], row["history"]) for row in result.rows] == [
        ("gateway", 50),
        ("bare server", 50),
        ("gateway", 200),
        ("bare server", 200),
        ("(tokenising it again)", 200),
    ]
    assert all(row["calls/s"] > 0 for row in result.rows)
    assert [bar.name for bar in result.bars] == ["added_p50_ms", "added_p99_ms", "history_growth"]


def test_a_folder_without_a_tokenizer_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no tokenizer here"):
        run(tmp_path, 1)
