"""Installing agents, from packages on the disk: the registries' own clients, without a network."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from openforge.agents import ADAPTERS, Installation
from openforge.types import UserError


def wheel(folder: Path, *, body: str = "print('hello 1.0')") -> str:
    """A package with the program `hello`."""
    path = folder / "hello-1.0-py3-none-any.whl"
    info = "hello-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("hello.py", f"def main():\n    {body}\n")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: hello\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/entry_points.txt", "[console_scripts]\nhello = hello:main\n")
        file.writestr(f"{info}/RECORD", "")
    return str(path)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("npm_config_offline", "true")


def pypi(tmp_path: Path, package: str) -> Installation:
    return Installation(replace(ADAPTERS["aider"], packages=(package,), program="hello", probe=()), tmp_path / "agents")


@pytest.mark.usefixtures("offline")
def test_a_package_of_pypi_gets_an_environment_of_its_own(tmp_path: Path) -> None:
    installation = pypi(tmp_path, wheel(tmp_path))
    assert not installation.complete
    installation.install()
    assert installation.complete
    assert os.access(installation.program, os.X_OK)
    assert not replace_packages(installation, "another==1.0").complete


@pytest.mark.usefixtures("offline")
def test_a_program_that_does_not_run_is_not_installed(tmp_path: Path) -> None:
    installation = pypi(tmp_path, wheel(tmp_path, body="raise SystemExit('no such luck')"))
    with pytest.raises(UserError, match="agents: aider: `hello` failed: no such luck") as caught:
        installation.install()
    assert "\n" not in str(caught.value)
    assert not installation.complete


@pytest.mark.usefixtures("offline")
def test_a_package_that_cannot_be_had_is_one_line(tmp_path: Path) -> None:
    installation = pypi(tmp_path, "no-such-package==1.0")
    with pytest.raises(UserError, match=r"agents: aider: .*no-such-package") as caught:
        installation.install()
    assert "\n" not in str(caught.value)
    assert not installation.complete


@pytest.mark.usefixtures("offline")
def test_a_package_of_npm_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        (pytest.fail if os.environ.get("OPENFORGE_REQUIRE") == "all" else pytest.skip)("no npm on PATH")
    package = tmp_path / "package"
    package.mkdir()
    (package / "package.json").write_text(json.dumps({"name": "hello", "version": "1.0.0", "bin": {"hello": "hello.sh"}}))
    (package / "hello.sh").write_text("#!/bin/sh\necho hello\n")
    (package / "hello.sh").chmod(0o755)
    installation = Installation(replace(ADAPTERS["pi"], packages=(str(package),), program="hello"), tmp_path / "agents")
    installation.install()
    assert installation.complete


def test_without_npm_the_user_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"codex comes from npm, which is not on PATH: install Node.js"):
        Installation(ADAPTERS["codex"], tmp_path / "agents").install()


def replace_packages(installation: Installation, *packages: str) -> Installation:
    return Installation(replace(installation.adapter, packages=packages), installation.root)
