from __future__ import annotations

from pathlib import Path

from openforge.tasks import TaskSettings


def test_eval_sets_go_by_name() -> None:
    assert TaskSettings(train=Path("t.jsonl")).eval_sets() == {}
    assert TaskSettings(train=Path("t.jsonl"), eval=Path("a/heldout.jsonl")).eval_sets() == {"heldout": Path("a/heldout.jsonl")}
    named = TaskSettings.model_validate({"train": "t.jsonl", "eval": {"A": "a.jsonl", "B": "b.jsonl"}})
    assert named.eval_sets() == {"A": Path("a.jsonl"), "B": Path("b.jsonl")}
