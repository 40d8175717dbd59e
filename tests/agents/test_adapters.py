"""Adapters: what an agent product is told, and what it leaves; a program of the test's own stands in for each product."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openforge.agents import ADAPTERS, AgentContext, AgentSettings, Installation, load_agent
from openforge.types import AgentResult, UserError

SHOW = f"""#!{sys.executable}
import json, os, pathlib, sys
home = pathlib.Path(os.environ["HOME"])
files = {{str(path.relative_to(home)): path.read_text() for path in home.rglob("*") if path.is_file()}}
print(json.dumps({{"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "files": files}}))
"""


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Installation]:
    """Installs a program that shows what it was given, in a product's place."""
    root = tmp_path / "agents"
    monkeypatch.setenv("OPENFORGE_AGENTS", str(root))

    def install(name: str) -> Installation:
        installation = Installation(ADAPTERS[name], root)
        installation.programs.mkdir(parents=True)
        installation.program.write_text(SHOW)
        installation.program.chmod(0o755)
        (installation.folder / "installed.json").write_text(json.dumps(ADAPTERS[name].packages))
        return installation

    return install


async def attempt(context: AgentContext, tmp_path: Path, **section: Any) -> AgentResult:
    agent = load_agent(AgentSettings.model_validate(section), tmp_path)
    agent.check()
    await agent.agent_preprocess(context)
    try:
        return await agent.agent_run(context)
    finally:
        await agent.agent_postprocess(context)


INSTRUCTIONS = ['Fix {"a": {model}} in  `main.c`\nand "say" \'so\', Ünïcode 數', "--help me", "-v"]


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
@pytest.mark.parametrize("name", ADAPTERS)
async def test_an_instruction_arrives_as_it_is(
    name: str, instruction: str, tmp_path: Path, pretend: Callable[[str], Installation], make_context: Callable[..., AgentContext]
) -> None:
    pretend(name)
    seen = json.loads((await attempt(make_context(instruction), tmp_path, adapter=name)).output)
    argv = seen["argv"]
    whole = instruction in argv or any(part.endswith(f"={instruction}") for part in argv)
    # OpenCode joins its words itself.
    assert whole or " ".join(argv[argv.index("--") + 1 :]) == instruction


@pytest.mark.parametrize("name", ADAPTERS)
async def test_a_product_is_told_its_model_and_not_that_it_is_trained(
    name: str, tmp_path: Path, pretend: Callable[[str], Installation], make_context: Callable[..., AgentContext]
) -> None:
    installation = pretend(name)
    context = make_context(base_url="http://127.0.0.1:1/r/r1/v1", model="policy")
    seen = json.loads((await attempt(context, tmp_path, adapter=name)).output)
    told = json.dumps([seen["argv"], seen["env"], seen["files"]])
    assert all(value in told for value in (context.base_url, context.api_key, context.model))
    assert seen["cwd"] == str(context.workspace)
    assert seen["env"]["PATH"].startswith(f"{installation.programs}:")
    home = Path(seen["env"]["HOME"])
    assert Path(seen["env"]["TMPDIR"]).is_relative_to(home)
    assert not home.is_relative_to(context.workspace)
    assert not home.exists()
    for path, content in seen["files"].items():
        assert json.loads(content), path


async def test_the_run_files_variables_and_arguments_win(
    tmp_path: Path, pretend: Callable[[str], Installation], make_context: Callable[..., AgentContext]
) -> None:
    pretend("claude-code")
    section = {"adapter": "claude-code", "env": {"DISABLE_TELEMETRY": "no", "MINE": "{model}"}, "arguments": ["--max-turns", "3"]}
    seen = json.loads((await attempt(make_context(), tmp_path, **section)).output)
    assert (seen["env"]["DISABLE_TELEMETRY"], seen["env"]["MINE"]) == ("no", "calculator")
    assert "--max-turns 3" in " ".join(seen["argv"])
    assert seen["argv"].index("--max-turns") < seen["argv"].index("--")


def test_an_adapter_knows_its_dialect() -> None:
    settings = AgentSettings.model_validate({"adapter": "claude-code"})
    assert settings.dialect == "messages"
    assert AgentSettings.model_validate(settings.model_dump(mode="json", by_alias=True)) == settings


def test_a_product_that_is_not_installed_is_told_before_the_run(
    tmp_path: Path, pretend: Callable[[str], Installation], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = load_agent(AgentSettings.model_validate({"adapter": "codex"}), tmp_path)
    with pytest.raises(UserError, match=r"codex .* is not installed: run `openforge agents install codex`"):
        agent.check()
    record = pretend("codex").folder / "installed.json"
    record.write_text(json.dumps(["@openai/codex@0.0.1"]))
    with pytest.raises(UserError, match="is not installed"):
        agent.check()


def test_versions_are_exact() -> None:
    for adapter in ADAPTERS.values():
        separator = "@" if adapter.registry == "npm" else "=="
        assert all(package.rpartition(separator)[2][0].isdigit() for package in adapter.packages)
        assert adapter.version[0].isdigit()


async def test_a_login_of_the_users_own_is_not_found(
    tmp_path: Path, pretend: Callable[[str], Installation], make_context: Callable[..., AgentContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """gemini-cli#15430: with a cached login the base URL was ignored. Here nothing of the user's HOME or keys can reach an agent."""
    (tmp_path / "home" / ".claude").mkdir(parents=True)
    (tmp_path / "home" / ".claude" / ".credentials.json").write_text("{}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "the user's own")
    pretend("claude-code")
    seen = json.loads((await attempt(make_context(), tmp_path, adapter="claude-code")).output)
    assert "ANTHROPIC_AUTH_TOKEN" not in seen["env"]
    assert not any("credentials" in path for path in seen["files"])


async def test_codex_gets_a_provider_of_its_own(
    tmp_path: Path, pretend: Callable[[str], Installation], make_context: Callable[..., AgentContext]
) -> None:
    """codex#11698: overrides of built-in providers are ignored; codex#7782: only the Responses wire is left."""
    pretend("codex")
    context = make_context()
    argv = json.loads((await attempt(context, tmp_path, adapter="codex")).output)["argv"]
    settings = dict(argv[at + 1].split("=", 1) for at, part in enumerate(argv) if part == "--config")
    provider = json.loads(settings["model_provider"])
    assert provider not in ("openai", "azure", "oss", "ollama", "lmstudio", "amazon-bedrock")
    assert json.loads(settings[f"model_providers.{provider}.wire_api"]) == "responses"
    assert json.loads(settings[f"model_providers.{provider}.base_url"]) == context.base_url
