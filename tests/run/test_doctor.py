"""The doctor: it tells what works from what is only installed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from openforge.agents import ADAPTERS
from openforge.run.doctor import COMPONENTS, diagnose, missing, print_findings


def test_the_table_has_every_component() -> None:
    findings = diagnose()
    assert {"python", "torch", "bf16", "cpu", "memory", "disk", *COMPONENTS} == {finding.component for finding in findings}
    assert all(finding.detail and "\n" not in finding.detail for finding in findings)
    console = Console(file=io.StringIO(), width=160)
    print_findings(findings, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(finding.component in text for finding in findings)


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_daemon_that_does_not_answer_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program(tmp_path, "docker", "echo 'Cannot connect' >&2; exit 1")
    assert "Cannot connect" in str(missing("docker"))
    program(tmp_path, "docker", "echo 27.1")
    assert missing("docker") is None


def test_what_is_not_on_the_path_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing("node") == "node: no `node` on PATH (needed for: agents written for Node.js)"


def test_only_agents_that_were_installed_at_the_pinned_version_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENFORGE_AGENTS", str(tmp_path))
    assert "none is installed" in str(missing("agents"))
    (tmp_path / "codex").mkdir()
    for packages, there in ((["@openai/codex@0.0.1"], False), (ADAPTERS["codex"].packages, True)):
        (tmp_path / "codex" / "installed.json").write_text(json.dumps(packages))
        assert (missing("agents") is None) is there


def test_a_broken_program_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    program(tmp_path, "npm", "exit 3")
    assert "exit code 3" in str(missing("npm"))
