"""The calculator example: its tool, its reward, its generated files, and the agent as a process against a scripted endpoint."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import pytest

from openforge.types import AgentResult, Task

EXAMPLE = Path(__file__).parents[2] / "examples" / "calculator"
FILES = ["tasks/train.jsonl", "tasks/heldout_a.jsonl", "tasks/heldout_b.jsonl", "sft.jsonl"]


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    spec = importlib.util.spec_from_file_location(name, EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLE / name).read_text(encoding="utf-8").splitlines()]


# --- the agent ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("48213 + 5521", "53734"),
        (" 6328*594 ", "3758832"),
        ("(2 - 5) * -3", "9"),
        ("7 // 2", "3"),
        ("84 / 7", "12"),
        ("7 / 2", "error: 7 / 2 is not a whole number"),
        ("1 // 0", "error: integer division or modulo by zero"),
        ("2 ** 9999999", "error: only whole numbers, + - * / // and parentheses are allowed"),
        ("__import__('os')", "error: only whole numbers, + - * / // and parentheses are allowed"),
        ("True + 1", "error: only whole numbers, + - * / // and parentheses are allowed"),
    ],
)
def test_calculator(expression: str, result: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = load("agent", monkeypatch)
    assert agent.call_tool("calculator", json.dumps({"expression": expression})) == result


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("calculator", "{"),
        ("calculator", "{}"),
        ("calculator", "[]"),
        ("calculator", '{"expression": 5}'),
        ("calculator", '{"expression": "("}'),
    ],
)
def test_a_bad_tool_call_is_answered_with_an_error(name: str, arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load("agent", monkeypatch).call_tool(name, arguments).startswith("error: ")


def test_an_unknown_tool_is_answered_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load("agent", monkeypatch).call_tool("search", '{"expression": "1"}') == "error: there is no tool 'search'"


def call(expression: str) -> dict[str, Any]:
    function = {"name": "calculator", "arguments": json.dumps({"expression": expression})}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]}


@contextmanager
def endpoint(reply: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An OpenAI-compatible server that answers with `reply(request)`; yields its base URL and the requests it got."""
    requests: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append(request)
            choice = {"index": 0, "message": reply(request), "finish_reason": "stop"}
            body = json.dumps({"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", requests
    finally:
        server.shutdown()
        server.server_close()


def run_agent(base_url: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "key", "OPENAI_MODEL": "m"}
    argv = [sys.executable, str(EXAMPLE / "agent.py"), "What is 48213 plus 5521?"]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)


def test_the_agent_runs_the_tool_and_prints_the_answer() -> None:
    with endpoint(lambda request: call("48213 + 5521") if len(request["messages"]) == 2 else {"role": "assistant", "content": "53734"}) as (
        url,
        seen,
    ):
        done = run_agent(url)
    assert (done.stdout, done.returncode) == ("53734\n", 0)
    assert [message["role"] for message in seen[1]["messages"]] == ["system", "user", "assistant", "tool"]
    assert seen[1]["messages"][:2] == seen[0]["messages"]
    assert seen[1]["messages"][2]["tool_calls"] == call("48213 + 5521")["tool_calls"]
    assert seen[1]["messages"][3] == {"role": "tool", "tool_call_id": "c1", "content": "53734"}


def test_the_agent_gives_up_on_a_model_that_never_answers() -> None:
    with endpoint(lambda request: call("1 +")) as (url, seen):
        done = run_agent(url)
    assert len(seen) == 4
    assert (done.stdout, done.returncode) == ("I could not work it out.\n", 0)
    assert seen[1]["messages"][-1]["content"].startswith("error: ")


def test_the_agent_knows_nothing_of_what_trains_it() -> None:
    assert "openforge" not in (EXAMPLE / "agent.py").read_text(encoding="utf-8").lower()


# --- the reward -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "reward"),
    [
        ("53734\n", 1.0),
        ("The answer is 53,734.", 1.0),
        ("48213 plus 5521 is $53734!", 1.0),
        ("53734 apples, not 5", 0.0),
        ("153734", 0.0),
        ("53734.0", 0.0),
        ("53734.5", 0.0),
        ("5,3734", 0.0),
        ("-53734", 0.0),
        ("", 0.0),
        ("I could not work it out.", 0.0),
    ],
)
def test_exact_match(output: str, reward: float, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(id="t", instruction="What is 48213 plus 5521?", data={"answer": 53734})
    assert load("rewards", monkeypatch).exact_match(task, AgentResult(output=output)) == reward


# --- the generated files --------------------------------------------------------------------------------------------------------------


def test_the_generator_writes_the_committed_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load("agent", monkeypatch)
    load("make_tasks", monkeypatch).main(tmp_path)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (EXAMPLE / name).read_bytes(), name


def test_held_out_tasks_share_no_operand_and_no_name_with_training(monkeypatch: pytest.MonkeyPatch) -> None:
    load("agent", monkeypatch)
    maker = load("make_tasks", monkeypatch)
    words: dict[str, set[str]] = {}
    for name in FILES:
        texts = [row["instruction"] if "instruction" in row else row["messages"][1]["content"] for row in rows(name)]
        assert len(set(texts)) == len(texts)
        words[name] = {word.strip(".,?;") for text in texts for word in text.split()}
    numbers = {name: {word for word in found if word.isdigit()} for name, found in words.items()}
    for held_out in ["tasks/heldout_a.jsonl", "tasks/heldout_b.jsonl"]:
        assert len(rows(held_out)) >= 100
        for seen in ["tasks/train.jsonl", "sft.jsonl"]:
            assert not numbers[held_out] & numbers[seen]
            assert not words[seen] & set(maker.HELD_OUT_NAMES)
        assert not words[held_out] & set(maker.NAMES)


def test_held_out_set_b_has_phrasings_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    load("agent", monkeypatch)
    maker = load("make_tasks", monkeypatch)
    trained = {phrasing for group in maker.PHRASINGS.values() for phrasing in group}
    assert len(trained) == 27
    assert not trained & {phrasing for group in maker.UNSEEN_PHRASINGS.values() for phrasing in group}
