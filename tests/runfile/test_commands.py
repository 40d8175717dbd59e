from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openforge.runfile.commands import base_environment, check_placeholders, fill_placeholders, resolve_command
from openforge.types import UserError


def test_existing_files_become_absolute_and_python_is_this_one(tmp_path: Path) -> None:
    (tmp_path / "agent.py").touch()
    (tmp_path / "conf").mkdir()
    argv = ["python", "agent.py", "conf", "-x", "other.txt", "{instruction}", ""]
    assert resolve_command(argv, tmp_path, setting="agent.command") == [
        sys.executable,
        str(tmp_path / "agent.py"),
        *argv[2:],
    ]


def test_a_program_beside_the_run_file(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "agent"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    with pytest.raises(UserError, match=r"'bin/agent' is not executable \(chmod \+x\)"):
        resolve_command(["bin/agent"], tmp_path, setting="agent.command")
    program.chmod(0o755)
    assert resolve_command(["bin/agent"], tmp_path, setting="agent.command") == [str(program)]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the command is empty"),
        (["no-such-agent"], "the program 'no-such-agent' is found neither in PATH nor in /"),
        (["python", "agnet.py"], "no script 'agnet.py' in /"),
    ],
)
def test_what_is_missing_is_told_before_the_run(tmp_path: Path, argv: list[str], message: str) -> None:
    with pytest.raises(UserError, match=f"^agent.command: {message}"):
        resolve_command(argv, tmp_path, setting="agent.command")


def test_an_unknown_placeholder_is_named_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"agent.command: unknown placeholder \{prompt\}; known are \{model\} \{instruction\}"):
        check_placeholders(["--do={prompt}"], ["model", "instruction"], setting="agent.command")
    check_placeholders(["{model}", "{{prompt}}", '{"json": {"a": 1}}', "{}", "{0}", "${model}"], ["model"], setting="agent.command")


def test_doubled_braces_are_literal_and_json_is_left_alone() -> None:
    values = {"model": "m"}
    assert fill_placeholders("{model} {{model}}", values) == "m {model}"
    assert fill_placeholders('{"a": {"b": "{model}"}}', values) == '{"a": {"b": "m"}}'


@given(st.text(alphabet="{}modelx \\$%\n'\"", max_size=30))
def test_a_value_is_inserted_as_it_is(value: str) -> None:
    assert fill_placeholders("<{x}|{x}>", {"x": value, "model": "never"}) == f"<{value}|{value}>"


def test_the_base_environment_holds_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "HTTP_PROXY"):
        monkeypatch.setenv(name, "secret")
    env = base_environment(tmp_path)
    assert env.keys() <= {"PATH", "HOME", "TMPDIR", "LANG", "VIRTUAL_ENV", "LD_LIBRARY_PATH"}
    assert env["PATH"].startswith(str(Path(sys.executable).parent) + ":")
    assert "secret" not in env.values()
