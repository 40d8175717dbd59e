from __future__ import annotations

from pathlib import Path

import pytest

from openforge.runfile.references import load_object
from openforge.types import UserError


def test_a_file_is_loaded_once_and_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_a.py").write_text("VALUE = 41")
    (tmp_path / "a.py").write_text(
        "from dataclasses import dataclass\nimport neighbour_of_a\nONE = object()\n"
        "@dataclass\nclass Two:\n    value: 'int' = neighbour_of_a.VALUE + 1\n"
    )
    assert load_object("a.py:ONE", tmp_path, setting="x") is load_object("./a.py:ONE", tmp_path, setting="x")
    assert load_object("a.py:Two", tmp_path, setting="x")().value == 42


def test_a_module_beside_the_run_file_or_installed(tmp_path: Path) -> None:
    (tmp_path / "package_by_the_run_file").mkdir()
    (tmp_path / "package_by_the_run_file" / "inner.py").write_text("NAME = 'inner'")
    assert load_object("package_by_the_run_file.inner:NAME", tmp_path, setting="x") == "inner"
    assert load_object("json:dumps", tmp_path, setting="x")([1]) == "[1]"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("reward.py", r"^reward.function: 'reward.py' is no reference; write it as file.py:name"),
        ("missing.py:f", r"^reward.function: no file .*missing.py"),
        ("good.py:exact_mach", r"good.py has no 'exact_mach'; did you mean 'exact_match'\?"),
        ("raises.py:f", r"importing 'raises.py' fails: ZeroDivisionError: division by zero \(.*raises.py:2\)"),
        ("broken.py:f", r"importing 'broken.py' fails: SyntaxError: .*\(line 1\)"),
        ("exits.py:f", r"importing 'exits.py' fails: SystemExit: 3"),
        ("no_such_module_at_all:f", r"importing 'no_such_module_at_all' fails: ModuleNotFoundError"),
    ],
)
def test_mistakes_are_one_clear_line(tmp_path: Path, reference: str, message: str) -> None:
    (tmp_path / "good.py").write_text("def exact_match(): ...")
    (tmp_path / "raises.py").write_text("x = 1\n1 / 0\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "exits.py").write_text("import sys; sys.exit(3)")
    with pytest.raises(UserError, match=message) as caught:
        load_object(reference, tmp_path, setting="reward.function")
    assert "\n" not in str(caught.value)
