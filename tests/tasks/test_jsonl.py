from __future__ import annotations

from pathlib import Path

import pytest

from openforge.tasks import load_tasks
from openforge.types import Task, UserError


def test_a_line_is_a_task(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(
        '{"instruction": "Add 2 and 3\u2028please", "answer": 5, "id": "sum"}\n\n'
        '{"instruction": "Ü", "domain": "spelling", "data": {"a": []}}\r\n',
        encoding="utf-8",
    )
    assert load_tasks(path) == [
        Task(id="sum", instruction="Add 2 and 3\u2028please", data={"answer": 5}),
        Task(id="train-3", instruction="Ü", domain="spelling", data={"data": {"a": []}}),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"instruction": "a"}\n{"instruction": ', r"tasks.jsonl:2: not JSON: "),
        (b'["a"]', r"tasks.jsonl:1: a task is a JSON object, not list"),
        (b'{"prompt": "a", "answer": 1}', r"tasks.jsonl:1: no 'instruction'; it has 'prompt', 'answer'"),
        (b'{"instruction": 3}', r"tasks.jsonl:1: 'instruction' must be a non-empty string"),
        (b'{"instruction": "a\\u0000"}', r"tasks.jsonl:1: 'instruction' must be a non-empty string without NUL"),
        (b'{"instruction": "a", "id": 7}', r"tasks.jsonl:1: 'id' must be"),
        (b'{"instruction": "a", "id": "x"}\n{"instruction": "b", "id": "x"}', r"tasks.jsonl:2: the id 'x' is line 1's already"),
        (b"\n \n", r"tasks.jsonl: no tasks in it"),
        (b'{"instruction": "\xff"}', r"tasks.jsonl: not UTF-8 at byte 17"),
    ],
)
def test_mistakes_are_told_with_file_and_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "tasks.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        load_tasks(tmp_path / "tasks.jsonl")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere.jsonl: cannot read the tasks: No such file"):
        load_tasks(tmp_path / "nowhere.jsonl")
