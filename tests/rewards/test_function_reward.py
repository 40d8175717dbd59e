from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from openforge.rewards import RewardFailed, RewardFunction, RewardSettings, load_reward
from openforge.sandbox import ProcessSandbox
from openforge.types import AgentResult, Reward, Task, UserError

TASK = Task(id="t", instruction="Say 5.", data={"answer": "5"})

FUNCTIONS = """
import asyncio, math, sys, time
from openforge.types import Reward

def exact_match(task, result):
    return result.output.strip() == task.data["answer"]

async def slowly(task, result):
    await asyncio.sleep(0.01)
    return Reward(value=0.5, parts={"half": 0.5})

class Judge:
    async def __call__(self, task, result):
        return 0.25
judge = Judge()

def broken(task, result):
    return task.data["no such key"]

async def broken_later(task, result):
    raise TimeoutError("a judge's own\\ntimeout")

def leaves(task, result):
    sys.exit(2)

def stops(task, result):
    return next(iter(()))

def nan(task, result):
    return math.nan

def nothing(task, result):
    pass

def hangs(task, result):
    time.sleep(30)

async def hangs_too(task, result):
    await asyncio.sleep(30)

constant = 3
"""


def load(folder: Path, name: str, timeout: float = 10.0) -> RewardFunction:
    (folder / "rewards.py").write_text(FUNCTIONS)
    settings = RewardSettings.model_validate({"function": f"rewards.py:{name}", "timeout": timeout})
    return load_reward(settings, folder, ProcessSandbox())


@pytest.mark.parametrize(
    ("name", "reward"),
    [("exact_match", Reward(value=1.0)), ("slowly", Reward(value=0.5, parts={"half": 0.5})), ("judge", Reward(value=0.25))],
)
async def test_functions_plain_and_async(tmp_path: Path, name: str, reward: Reward) -> None:
    assert await load(tmp_path, name)(TASK, AgentResult(output="5\n")) == reward


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("broken", r"rewards.py:broken raised KeyError: 'no such key'"),
        ("broken_later", r"rewards.py:broken_later raised TimeoutError: a judge's own timeout"),
        ("leaves", r"raised SystemExit: 2"),
        ("stops", r"StopIteration"),
        ("nan", r"rewards.py:nan: a reward is finite, not nan"),
        ("nothing", r"rewards.py:nothing: a reward is a number, not None"),
    ],
)
async def test_a_failure_is_never_a_zero(tmp_path: Path, name: str, detail: str) -> None:
    with pytest.raises(RewardFailed, match=detail) as caught:
        await load(tmp_path, name)(TASK, AgentResult())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["hangs", "hangs_too"])
async def test_a_hanging_function_fails_at_its_timeout_and_others_go_on(tmp_path: Path, name: str) -> None:
    hanging = load(tmp_path, name, timeout=0.2)
    started = time.monotonic()
    ended = await asyncio.gather(*(hanging(TASK, AgentResult()) for _ in range(60)), return_exceptions=True)
    assert {str(error) for error in ended} == {f"rewards.py:{name} took longer than 0.2 s"}
    assert time.monotonic() - started < 15
    assert await load(tmp_path, "exact_match")(TASK, AgentResult(output="5")) == Reward(value=1.0)


async def test_cancelling_is_not_a_failure(tmp_path: Path) -> None:
    task = asyncio.ensure_future(load(tmp_path, "hangs")(TASK, AgentResult()))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_hanging_function_does_not_hold_up_the_end_of_the_process(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(FUNCTIONS)
    code = (
        "import asyncio\nfrom pathlib import Path\nfrom openforge.rewards import *\nfrom openforge.types import *\n"
        "reward = load_reward(RewardSettings(function='rewards.py:hangs', timeout=0.1), Path(), None)\n"
        "async def main():\n    try: await reward(Task(id='t', instruction='x'), AgentResult())\n    except RewardFailed: print('failed')\n"
        "asyncio.run(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=25, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("failed\n", "", 0)


@pytest.mark.parametrize(
    ("name", "message"), [("exact", "has no 'exact'; did you mean 'exact_match'"), ("constant", "'rewards.py:constant' is no function")]
)
def test_mistakes_are_told_at_load(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(tmp_path, name)
