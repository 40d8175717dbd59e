from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from openforge.rewards import RewardFailed, RewardSettings, load_reward
from openforge.sandbox import ProcessSandbox
from openforge.types import AgentResult, Reward, Task, UserError

TASK = Task(id="t", instruction="Write 5 to answer.txt {braces}", data={"answer": "5"})


async def run(script: str, folder: Path, result: AgentResult | None = None, timeout: float = 20.0) -> Reward:
    settings = RewardSettings(command=["sh", "-c", script], timeout=timeout)
    return await load_reward(settings, folder, ProcessSandbox())(TASK, result or AgentResult())


@pytest.mark.parametrize(
    ("script", "reward"),
    [
        ("true", Reward(value=1.0)),
        ("exit 1", Reward(value=0.0)),
        ("echo 3 tests passed; exit 7", Reward(value=0.0)),
        ("""echo log; echo '{"reward": 0.5, "parts": {"a": 1, "b": 0}}'; echo""", Reward(value=0.5, parts={"a": 1.0, "b": 0.0})),
        ("""echo '{"reward": 0.25}'; exit 1""", Reward(value=0.25)),
        ("""echo '{"reward": 0.5}'; echo later""", Reward(value=1.0)),
        ("""echo '{"tests": 3}'""", Reward(value=1.0)),
        ("""yes | head -c 3000000; echo '{"reward": 0.125}'""", Reward(value=0.125)),
    ],
)
async def test_exit_code_or_json(tmp_path: Path, script: str, reward: Reward) -> None:
    assert await run(script, tmp_path) == reward


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        ("kill -9 $$", "killed by SIGKILL"),
        ("sleep 60", r"took longer than 0.5 s"),
        ("""echo '{"reward": NaN}'""", "a reward is finite, not nan"),
        ("""echo '{"reward": "good"}'""", "a reward is a number, not 'good'"),
        ("""echo '{"reward": 1, "parts": 3}'""", "a reward object is"),
    ],
)
async def test_a_failure_is_never_a_zero(tmp_path: Path, script: str, detail: str) -> None:
    with pytest.raises(RewardFailed, match=detail):
        await run(script, tmp_path, timeout=0.5 if "sleep" in script else 20.0)


async def test_it_finds_task_output_and_workspace(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "answer.txt").write_text("5")
    script = 'cat "$OPENFORGE_TASK" > task; cat "$OPENFORGE_OUTPUT" > output; test $(cat answer.txt) = 5 && test $OPENFORGE_EXIT_CODE = 0'
    assert (await run(script, tmp_path, AgentResult(output="hé\ufffd\n", workspace=workspace))).value == 1.0
    assert json.loads((workspace / "task").read_text()) == {
        "id": "t",
        "instruction": TASK.instruction,
        "domain": "default",
        "data": TASK.data,
    }
    assert (workspace / "output").read_text() == "hé\ufffd\n"


async def test_the_parents_secrets_stay_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    assert (await run('test -z "$SECRET_TOKEN"', tmp_path)).value == 1.0
    assert os.environ["SECRET_TOKEN"]


async def test_a_workspace_that_is_gone_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RewardFailed, match="No such file"):
        await run("true", tmp_path, AgentResult(workspace=tmp_path / "gone"))


def test_a_missing_program_is_told_at_load(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"reward.command: the program 'no-such-grader' is found neither"):
        load_reward(RewardSettings(command=["no-such-grader"]), tmp_path, ProcessSandbox())


@pytest.mark.parametrize("section", [{}, {"function": "a.py:f", "command": ["true"]}])
def test_exactly_one_kind(section: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="exactly one of 'function' and 'command'"):
        RewardSettings.model_validate(section)
