"""`openforge serve` as a process of its own, driven by the unmodified SDK."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from transformers import AutoTokenizer

from openforge.gateway import Gateway, listen
from openforge.pool import Store
from openforge.run.serve import ServedModel, ServeSettings, make_settings, open_backend, serve
from openforge.types import FinishReason, Outcome, Sampling, UserError

KEY = "an-admin-key-for-tests"
SECRET = "Zanzibar"


class Process:
    """A serving process; what it prints is in `output` when it has ended."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self.output = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "openforge", "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.output += line
            if found := re.search(r" at (http://\S+),", line):
                self.address = found[1]
                return
        raise AssertionError(f"it did not start: {self.output}")

    def end(self, number: int) -> int:
        self._process.send_signal(number)
        rest, _ = self._process.communicate(timeout=60)
        self.output += rest
        return self._process.returncode

    def admin(self, method: str, path: str, **options: Any) -> Any:
        return httpx.request(method, self.address + path, headers={"authorization": f"Bearer {KEY}"}, **options).json()

    def say(self, made: dict[str, Any], *, base: str | None = None, **options: Any) -> openai.types.chat.ChatCompletion:
        with openai.OpenAI(base_url=base or made["base_urls"]["chat"], api_key=made["api_key"], max_retries=0) as client:
            ask = [{"role": "user", "content": f"say {SECRET}"}]
            return client.chat.completions.create(model="m", messages=ask, max_tokens=5, **options)


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def run(*arguments: str | Path, **environment: str) -> Process:
        started.append(Process([*map(str, arguments)], {"OPENFORGE_ADMIN_KEY": KEY, **environment}))
        return started[-1]

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.end(signal.SIGKILL)


@pytest.mark.slow
def test_calls_survive_kill_9_and_the_directory_opens_again(start, tiny_model, tmp_path) -> None:
    where = ("--model", tiny_model, "--dir", tmp_path / "calls")
    first = start(*where)
    made = first.admin("POST", "/rollouts")
    by_path, by_key = first.say(made), first.say(made, base=first.address + "/v1")
    first.end(signal.SIGKILL)

    second = start(*where)
    assert second.admin("GET", f"/rollouts/{made['id']}")["outcome"] == "cancelled"
    with pytest.raises(openai.AuthenticationError):
        second.say(made, base=second.address + "/v1")
    again = second.admin("POST", "/rollouts", json={"sampling": {"temperature": 0}})
    second.say(again)
    assert "openforge_gateway_calls_total" in httpx.get(second.address + "/metrics").text
    assert httpx.get(second.address + "/health").json() == {"status": "ok", "open_rollouts": 1}
    assert second.end(signal.SIGINT) == 0, second.output

    with Store.open(tmp_path / "calls" / "calls.db") as store:
        assert {f"chatcmpl-{call.id}" for call in store.calls(made["id"])} == {by_path.id, by_key.id}
        (call,) = store.calls(again["id"])
        assert (call.finish, call.sampling.temperature) in {(FinishReason.LENGTH, 0), (FinishReason.STOP, 0)}
        assert len(call.logprobs) == len(call.sampled) > 0
        assert store.rollout(again["id"]).outcome is Outcome.CANCELLED
    for process in (first, second):
        for secret in (KEY, made["api_key"], again["api_key"], SECRET):
            assert secret not in process.output


@pytest.mark.slow
def test_an_upstream_is_served_and_its_calls_become_transcripts(start, openforge, tiny_model, tmp_path) -> None:
    teacher = start("--model", tiny_model, "--dir", tmp_path / "teacher")
    there = teacher.admin("POST", "/rollouts")
    front = start(
        *("--upstream", there["base_urls"]["chat"], "--upstream-model", "big", "--dir", tmp_path / "front"),
        OPENFORGE_UPSTREAM_KEY=there["api_key"],
    )
    made = front.admin("POST", "/rollouts")
    reply = front.say(made, temperature=0)
    assert front.admin("DELETE", f"/rollouts/{made['id']}")["calls"] == 1
    assert (front.end(signal.SIGTERM), teacher.end(signal.SIGTERM)) == (0, 0)
    assert there["api_key"] not in front.output
    assert there["api_key"].encode() not in (tmp_path / "front" / "calls.db").read_bytes()
    assert there["api_key"] not in (tmp_path / "front" / "config.yaml").read_text()

    (row,) = map(json.loads, openforge("calls", tmp_path / "front", "--json").stdout.splitlines())
    assert (row["rollout"], row["dialect"], row["kind"], row["finish"]) == (made["id"], "chat", "main", reply.choices[0].finish_reason)
    assert row["sampled_tokens"] == reply.usage.completion_tokens
    (below,) = map(json.loads, openforge("calls", tmp_path / "teacher", "--json").stdout.splitlines())
    assert (below["prompt_tokens"], below["sampled_tokens"]) == (row["prompt_tokens"], row["sampled_tokens"])


async def test_what_a_vllm_server_samples_is_recorded_as_it_was(serve_script, tiny_model, tmp_path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    replies = [[*tokenizer.encode(word), end] for word in ("hé", "you")]
    prompts: list[list[int]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "tiny", "max_model_len": 500}]})
        body = json.loads(request.content)
        ids = replies[len(prompts)]
        prompts.append(body["prompt"])
        assert body["stop_token_ids"] == [end]
        choice = {"text": "", "token_ids": ids, "logprobs": {"token_logprobs": [-0.5] * len(ids)}, "finish_reason": "stop"}
        return httpx.Response(200, text=f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n")

    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serve_script(answer))
        settings = ServeSettings(model=ServedModel(path=tiny_model), engine=url, name="tiny")
        store = stack.enter_context(Store.open(tmp_path / "calls.db"))
        gateway = Gateway(await stack.enter_async_context(open_backend(settings)), store, model_name="tiny")
        address = await stack.enter_async_context(listen(gateway))
        access = gateway.open("r", sampling=Sampling(max_tokens=50))
        client = await stack.enter_async_context(openai.AsyncOpenAI(base_url=address + access.path + "/v1", api_key="k"))
        history: list[Any] = [{"role": "user", "content": "hello"}]
        for text in ("hé", "you"):
            reply = await client.chat.completions.create(model="m", messages=history)
            assert reply.choices[0].message.content == text
            history += [{"role": "assistant", "content": text}, {"role": "user", "content": "more"}]
        one, two = store.calls("r")
    assert [one.sampled, two.sampled] == replies
    assert (one.logprobs, one.versions) == ([-0.5] * len(replies[0]), [0] * len(replies[0]))
    assert (two.parent_id, two.fork) == (one.id, None)
    assert prompts[1][: len(prompts[0]) + len(replies[0])] == prompts[0] + replies[0]


def test_options_that_do_not_go_together_are_one_line(tiny_model, tmp_path) -> None:
    nothing = {"model": None, "format": None, "engine": None, "upstream": None, "upstream_dialect": "chat", "upstream_model": None}
    for wrong, says in (
        ({}, "say what to serve"),
        ({"engine": "http://x"}, "say what to serve"),
        ({"upstream": "http://x"}, "--upstream-model"),
        ({"upstream": "http://x", "upstream_model": "m", "model": tiny_model}, "stands alone"),
        ({"upstream": "http://x", "upstream_model": "m", "upstream_dialect": "soap"}, "chat or messages"),
        ({"model": tmp_path / "nowhere"}, "there is no folder"),
    ):
        with pytest.raises(UserError, match=says):
            make_settings(**{**nothing, **wrong})  # type: ignore[arg-type]


def test_a_directory_of_something_else_is_refused(tiny_model, tmp_path, monkeypatch) -> None:
    settings = make_settings(
        model=None, format=None, engine=None, upstream="http://127.0.0.1:1", upstream_dialect="chat", upstream_model="one"
    )
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UserError, match="OPENFORGE_UPSTREAM_KEY"):
        serve(settings, tmp_path / "calls")
    other = ServeSettings(model=ServedModel(path=tiny_model), name="other")
    with pytest.raises(UserError, match="holds calls of one"):
        serve(other, tmp_path / "calls")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("name: x\n")
    with pytest.raises(UserError, match="holds a run"):
        serve(other, tmp_path / "run")
