"""What was recorded, listed, shown and turned into transcripts."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from transformers import AutoTokenizer

from openforge.gateway.formats import load_format
from openforge.gateway.text import own_tokenizer
from openforge.pool import Store
from openforge.run.calls import Filter, find_call, list_calls, recorded, show_call, show_list, transcripts, write_transcripts
from openforge.run.sft import load_transcripts
from openforge.types import Call, FinishReason, Fork, Outcome, Rollout, Sampling, UserError

USER = {"role": "user", "content": "add 1 and 2"}
TOOL = {"name": "add", "description": "", "parameters": {"type": "object"}}
CALLED = {
    "role": "assistant",
    "content": "",
    "reasoning": "hm",
    "tool_calls": [{"id": "c1", "name": "add", "arguments": '{"a": 1}'}],
}
RESULT = {"role": "tool", "content": "3", "tool_call_id": "c1"}
THREE = {"role": "assistant", "content": "three"}
UPSTREAM = {"model": "big", "finish": "stop", "usage": {"prompt_tokens": 10, "sampled_tokens": 4}}


def call(id: str, messages: list[Any], reply: Any, parent: str | None = None, kept: int = 0, **fields: Any) -> Call:
    """As an upstream's calls are recorded."""
    request = {"messages_shared": kept, "messages": messages, **({} if parent else {"tools": fields.pop("tools", [TOOL])})}
    defaults: dict[str, Any] = {
        "rollout_id": "r1",
        "index": 0,
        "parent_id": parent,
        "shared": 0,
        "delta": [],
        "sampled": [],
        "logprobs": [],
        "versions": [],
        "finish": FinishReason.STOP,
        "sampling": Sampling(),
        "dialect": "chat",
        "request": request,
        "response": reply,
        "upstream": UPSTREAM,
        "started_at": 1.0,
        "ended_at": 2.5,
    }
    return Call(id=id, **{**defaults, **fields})


async def fill(store: Store, calls: list[Call], outcome: Outcome | None = Outcome.FINISHED) -> None:
    for rollout_id in dict.fromkeys(each.rollout_id for each in calls):
        rollout = Rollout(id=rollout_id, task_id="", unit=-1, index=0, split="serve", started_at=1.0)
        await store.start_rollout(rollout)
        if outcome is not None:
            await store.end_rollout(dataclasses.replace(rollout, outcome=outcome, ended_at=3.0))
    for each in calls:
        await store.append(each)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "calls.db") as found:
        yield found


TITLE = call("d0", [{"role": "user", "content": "title?"}], {"role": "assistant", "content": "Sums"}, tools=[], started_at=0.5)
MAIN = [
    call("a1", [USER], CALLED),
    call("b2", [RESULT], THREE, "a1", 2, started_at=3.0),
]
RETRIED = call("c3", [], {"role": "assistant", "content": ""}, "a1", 1, fork=Fork.RETRY, finish=FinishReason.ABORTED)


async def test_calls_known_as_text_get_their_lineages(store: Store) -> None:
    await fill(store, [TITLE, *MAIN, RETRIED])
    kinds = {row.id: row.kind for row in list_calls(store, Filter())}
    assert kinds == {"d0": "side", "a1": "main", "b2": "main", "c3": "retry"}


async def test_a_filter_takes_what_it_names(store: Store) -> None:
    await fill(store, [TITLE, *MAIN, RETRIED, call("e5", [USER], THREE, rollout_id="s2", dialect="messages")])
    assert [row.id for row in list_calls(store, Filter(rollout="s"))] == ["e5"]
    assert [row.id for row in list_calls(store, Filter(dialect="messages"))] == ["e5"]
    assert [row.id for row in list_calls(store, Filter(finish="aborted"))] == ["c3"]
    assert [row.id for row in list_calls(store, Filter(kind="main", rollout="r1"))] == ["a1", "b2"]
    for wrong in ({"kind": "chief"}, {"finish": "well"}):
        with pytest.raises(UserError, match="there are"):
            Filter(**wrong)


async def test_the_list_is_a_table_or_lines_of_json(store: Store) -> None:
    await fill(store, MAIN)
    plain, lines = io.StringIO(), io.StringIO()
    show_list(store, Filter(), Console(file=plain, width=200), as_json=False)
    show_list(store, Filter(), Console(file=lines, width=20), as_json=True)
    assert "2 calls" in plain.getvalue()
    rows = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [(row["id"], row["prompt_tokens"], row["sampled_tokens"], row["seconds"]) for row in rows] == [
        ("a1", 10, 4, 1.5),
        ("b2", 10, 4, -0.5),
    ]


async def test_one_call_is_shown_with_its_whole_conversation(store: Store, tmp_path: Path) -> None:
    await fill(store, MAIN)
    shown, line = io.StringIO(), io.StringIO()
    show_call(store, tmp_path, find_call(store, "b"), Console(file=shown, width=100), as_json=False)
    for words in ("add 1 and 2", "hm", 'add({"a": 1})', "three", "big"):
        assert words in shown.getvalue()
    show_call(store, tmp_path, find_call(store, "b2"), Console(file=line, width=20), as_json=True)
    full = json.loads(line.getvalue())
    assert (full["messages"], full["response"], full["tools"], full["sampled"]) == ([USER, CALLED, RESULT], THREE, [TOOL], [])


async def test_a_call_of_an_engine_is_shown_as_the_model_saw_it(store: Store, tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model": {"path": str(tiny_model)}}))
    encode = AutoTokenizer.from_pretrained(tiny_model).encode
    first, more, said = encode("<|im_start|>user\nhé"), encode("<|im_end|>"), encode("ok<|im_end|>")
    ids = {"logprobs": [0.0] * len(said), "versions": [0] * len(said), "sampled": said, "upstream": {}}
    parent = call("a1", [USER], THREE, delta=first, **ids)
    await fill(store, [parent, call("b2", [USER], THREE, "a1", 2, shared=len(first), delta=more, **ids)])
    line = io.StringIO()
    show_call(store, tmp_path, find_call(store, "b2"), Console(file=line), as_json=True)
    full = json.loads(line.getvalue())
    assert (full["prompt_text"], full["sampled_text"]) == ("<|im_start|>user\nhé<|im_end|>", "ok<|im_end|>")
    assert full["prompt_ids"] == first + more
    (_, row) = list_calls(store, Filter())
    assert (row.prompt_tokens, row.sampled_tokens) == (len(first + more), len(said))


async def test_a_call_is_found_by_the_beginning_of_its_id(store: Store) -> None:
    await fill(store, [call("ab1", [USER], THREE), call("ab2", [USER], THREE)])
    assert find_call(store, "ab2").id == "ab2"
    for prefix, says in (("ab", "several calls begin"), ("x", "no call begins"), ("%", "no call begins")):
        with pytest.raises(UserError, match=says):
            find_call(store, prefix)


def test_a_directory_without_calls_is_one_line_and_stays_empty(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no calls"), recorded(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


async def test_finished_rollouts_become_transcripts_that_fine_tuning_reads(store: Store, tmp_path: Path, tiny_model: Path) -> None:
    cut = call("f6", [{"role": "user", "content": "more"}], {"role": "assistant", "content": "cut of"}, "b2", 4, finish=FinishReason.LENGTH)
    await fill(store, [TITLE, *MAIN, RETRIED, cut])
    await fill(store, [call("g7", [USER], THREE, rollout_id="failed")], Outcome.AGENT_ERROR)
    await fill(store, [call("h8", [USER], THREE, rollout_id="open")], None)
    refused = {**UPSTREAM, "finish": "refusal"}
    await fill(store, [call("i9", [USER], THREE, rollout_id="refused", upstream=refused)])
    (row,) = transcripts(store)
    assert row == {
        "messages": [
            {"role": "user", "content": "add 1 and 2"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
            },
            {"role": "tool", "content": "3", "tool_call_id": "c1"},
            {"role": "assistant", "content": "three"},
        ],
        "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}],
    }
    assert write_transcripts(store, tmp_path / "sft.jsonl") == 1
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    (read,) = load_transcripts(tmp_path / "sft.jsonl", load_format("hermes", tokenizer), own_tokenizer(tokenizer))
    text = tokenizer.decode(read.tokens[read.sampled])
    assert "hm" in text
    assert "three" in text
    assert "add 1 and 2" not in text
