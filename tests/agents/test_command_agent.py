"""Command agents, run as real programs."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openforge.agents import Agent, AgentContext, AgentSettings, load_agent
from openforge.types import AgentResult, SandboxError, UserError

MakeContext = Callable[..., AgentContext]

AGENT = """
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "python": sys.executable}))
"""


def command_agent(folder: Path, command: list[str], **section: Any) -> Agent:
    agent = load_agent(AgentSettings(command=command, **section), folder)
    agent.check()
    return agent


async def attempt(agent: Agent, context: AgentContext) -> AgentResult:
    await agent.agent_preprocess(context)
    return await agent.agent_run(context)


async def seen_by_agent(folder: Path, context: AgentContext, *arguments: str, **section: Any) -> dict[str, Any]:
    (folder / "agent.py").write_text(AGENT)
    result = await attempt(command_agent(folder, ["python", "agent.py", *arguments], **section), context)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.output)  # type: ignore[no-any-return]


INSTRUCTIONS = [
    'What is {"a": {b}} minus {model} and {workspace}?',
    "{{instruction}} {0} {} %s $HOME `id` \\n",
    "line one\nline two\t'quoted' \"twice\" Ünïcode 數 \u2028 --help",
    "-v",
]


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
async def test_an_instruction_arrives_as_it_is(tmp_path: Path, make_context: MakeContext, instruction: str) -> None:
    context = make_context(instruction)
    seen = await seen_by_agent(tmp_path, context, "{instruction}", "--task={instruction}", "{{instruction}}")
    assert seen["argv"] == [instruction, f"--task={instruction}", "{instruction}"]


async def test_the_agent_learns_where_its_model_is_and_nothing_else(
    tmp_path: Path, make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "the user's own")
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    context = make_context()
    placeholders = ["{base_url}", "{model}", "{workspace}", "{api_key}"]
    seen = await seen_by_agent(tmp_path, context, *placeholders, env={"MY_URL": "{base_url}/x", "LANG": "de"})
    assert seen["argv"] == [context.base_url, "calculator", str(context.workspace), "key-1"]
    assert seen["cwd"] == str(context.workspace)
    assert seen["python"] == sys.executable
    env = seen["env"]
    assert (env["OPENAI_BASE_URL"], env["OPENAI_API_KEY"], env["OPENAI_MODEL"]) == (context.base_url, "key-1", "calculator")
    assert (env["MY_URL"], env["LANG"], env["HOME"]) == (context.base_url + "/x", "de", str(context.workspace))
    assert Path(env["TMPDIR"]).is_dir()
    assert env.keys() <= {
        *("PATH", "HOME", "TMPDIR", "LANG", "LC_CTYPE", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "MY_URL"),
        *("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"),
    }
    assert "openforge" not in " ".join([*env.keys(), *(env[name] for name in env if name.startswith("OPENAI"))]).lower()


async def test_a_workspace_template_is_copied_for_each_attempt(tmp_path: Path, make_context: MakeContext) -> None:
    (tmp_path / "project" / "src").mkdir(parents=True)
    (tmp_path / "project" / "src" / "main.c").write_text("int main;")
    agent = command_agent(tmp_path, ["sh", "-c", "cat src/main.c; rm src/main.c"], workspace="project")
    assert (await attempt(agent, make_context())).output == "int main;"
    assert (tmp_path / "project" / "src" / "main.c").exists()


async def test_a_crash_is_told_with_what_it_said(tmp_path: Path, make_context: MakeContext) -> None:
    (tmp_path / "agent.py").write_text("print('so far')\nimport no_such_module\n")
    result = await attempt(command_agent(tmp_path, ["python", "agent.py"]), make_context())
    assert (result.exit_code, result.output) == (1, "so far\n")
    assert "No module named 'no_such_module'" in result.stderr


async def test_bytes_that_are_not_utf8_become_replacement_characters(tmp_path: Path, make_context: MakeContext) -> None:
    result = await attempt(command_agent(tmp_path, ["printf", r"a\377b"]), make_context())
    assert result.output == "a\ufffdb"


async def test_a_hang_ends_at_the_deadline(tmp_path: Path, make_context: MakeContext) -> None:
    context = make_context(deadline=0.3, log_dir=tmp_path / "logs")
    with pytest.raises(TimeoutError, match=r"killed at its deadline of 0\.3 s"):
        await attempt(command_agent(tmp_path, ["sh", "-c", "echo thinking; sleep 60"]), context)
    assert (tmp_path / "logs" / "stdout.log").read_text() == "thinking\n"


async def test_cancelling_an_attempt_kills_its_program(tmp_path: Path, make_context: MakeContext) -> None:
    context = make_context()
    task = asyncio.create_task(attempt(command_agent(tmp_path, ["sh", "-c", "echo $$ > pid; sleep 60"]), context))
    while not (pid := context.workspace / "pid").exists() or not pid.read_text().strip():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not Path(f"/proc/{int(pid.read_text())}").exists()


async def test_a_program_that_vanished_is_the_sandboxs_failure(tmp_path: Path, make_context: MakeContext) -> None:
    program = tmp_path / "agent"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    agent = command_agent(tmp_path, ["./agent"])
    program.unlink()
    with pytest.raises(SandboxError, match=r"cannot run '.*agent': No such file"):
        await attempt(agent, make_context())


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"command": ["no-such-agent"]}, r"agent.command: the program 'no-such-agent' is found neither in PATH nor in /"),
        ({"command": ["python", "missing.py"]}, r"agent.command: no script 'missing.py' in /"),
        ({"command": ["true", "{prompt}"]}, r"agent.command: unknown placeholder \{prompt\}; known are \{base_url\} \{model\}"),
        ({"command": ["true"], "env": {"X": "{url}"}}, r"agent.env: unknown placeholder \{url\}"),
        ({"command": ["true"], "preload": ["no_such_sdk.inner"]}, r"agent.preload: no module 'no_such_sdk.inner' is installed"),
        ({"command": ["true"], "workspace": "missing"}, r"agent.workspace: no folder /.*missing"),
    ],
)
def test_what_no_attempt_could_do_is_told_before_the_run(tmp_path: Path, section: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_agent(AgentSettings.model_validate(section), tmp_path).check()
    assert "\n" not in str(caught.value)
