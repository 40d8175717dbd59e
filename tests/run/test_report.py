"""The report: from a run directory to one self-contained page."""

from __future__ import annotations

import asyncio
import math
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from openforge.pool import Store
from openforge.run.metrics import MetricsWriter, read_metrics
from openforge.run.report import write_report
from openforge.run.report.plots import REASONS
from openforge.run.report.rollouts import NumberDecoder, select, view
from openforge.run.report.summary import summarise
from openforge.run.rundir import RunDir
from openforge.types import Call, FinishReason, Fork, MaskReason, Outcome, Reward, Rollout, Sampling, Task, UserError

RUN_FILE = """
name: shop
model: {path: gone/elsewhere}
tasks: {train: train.jsonl, eval: heldout.jsonl}
agent: {command: [python, agent.py]}
reward: {function: "rewards.py:exact_match"}
train: {steps: 40}
"""
NASTY = "<script>alert('x')</script> & 日本 🙂"


def byte_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(["the price of 12 apples is 34", "add subtract multiply"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def step_row(step: int, rng: random.Random) -> dict[str, Any]:
    reward = 1 / (1 + math.exp(-(step - 15) / 6)) + rng.uniform(-0.08, 0.08)
    masked = {"zero_variance": rng.randrange(60, 200), "no_reward": rng.randrange(20)}
    share = 1 - sum(masked.values()) / 1200
    return {
        "kind": "step", "step": step, "version": step, "reward_mean": min(1, max(0, reward)), "reward_std": 0.4, "groups": 4,
        "rollouts": 32, "outcomes": {"finished": 30, "agent_error": 1, "truncated": 1},
        "sampled_tokens": 1200, "trained_tokens": round(1200 * share), "trained_share": share, "masked": masked,
        "staleness_mean": rng.random(), "staleness_max": rng.randrange(1, 3), "entropy": 0.6 * math.exp(-step / 25) + 0.05,
        "logprob_gap": 3e-6 * (1 + rng.random()), "logprob_gap_max": 8e-5 * (1 + rng.random()),
        "loss": rng.uniform(-0.1, 0.1), "grad_norm": 0.4 + rng.random() / 2, "learning_rate": 1e-5,
        "train_seconds": 6 + rng.random(), "wait_seconds": 2 * rng.random(), "elapsed": step * 8.0,
        "positions": 2_000 + step, "row_positions": 9_000,
        "sample_tokens_per_second": 320 + 40 * rng.random(), "train_tokens_per_second": 900.0,
        "domains": {
            "shop": {"share": 0.75, "launched_share": 0.75, "consumed_share": 0.7, "groups": 3, "reward_mean": reward,
                     "staleness_mean": 1.0, "overdue": step % 2, "cut": step % 2, "refill": 0},
            "code": {"share": 0.25, "launched_share": 0.25, "consumed_share": 0.3, "overdue": 0, "cut": 0, "refill": 0},
        },
    }  # fmt: skip


def call(tokenizer: Any, rollout: str, index: int, prompt: str, reply: str, parent: Call | None = None, **changes: Any) -> Call:
    rng = random.Random(index)
    sampled = tokenizer.encode(reply, add_special_tokens=False)
    fields: dict[str, Any] = {
        "id": f"{rollout}-{index}", "rollout_id": rollout, "index": index, "parent_id": parent.id if parent else None,
        "shared": len(parent.delta) + len(parent.sampled) if parent else 0,
        "delta": tokenizer.encode(prompt, add_special_tokens=False), "sampled": sampled,
        "logprobs": [-rng.expovariate(1.5) for _ in sampled], "versions": [3 + (place > 8) for place in range(len(sampled))],
        "finish": FinishReason.STOP, "sampling": Sampling(), "dialect": "chat", "request": {},
        "response": {"role": "assistant", "content": reply}, "started_at": 10.0 + index, "ended_at": 10.4 + index,
    }  # fmt: skip
    return Call(**(fields | changes))


async def record(run: RunDir, tokenizer: Any) -> None:
    """A small run as the controller would have left it: forty steps, evaluations, some rollouts."""
    rng = random.Random(0)
    with MetricsWriter(run) as metrics:
        for step in range(1, 26):
            metrics.write({"kind": "sft", "step": 0, "sft_step": step, "elapsed": 1.64 * step, "loss": 2.4 * math.exp(-step / 8) + 0.2})
        for label, a, b in (("base model", 0.01, 0.0), ("before rl", 0.312, 0.27)):
            metrics.write(
                {"kind": "eval", "step": 0, "set": "a", "accuracy": a, "tasks": 128, "scored": 128, "label": label, "seconds": 20.0}
            )
            metrics.write(
                {"kind": "eval", "step": 0, "set": "b", "accuracy": b, "tasks": 128, "scored": 127, "label": label, "seconds": 21.0}
            )
        for step in range(1, 41):
            metrics.write(step_row(step, rng))
            if step % 10 == 0:
                accuracy = 0.31 + 0.014 * step
                metrics.write(
                    {"kind": "eval", "step": step, "set": "a", "accuracy": accuracy, "tasks": 32, "label": f"step {step}", "seconds": 6.0}
                )
        metrics.write(
            {"kind": "eval", "step": 40, "set": "a", "accuracy": 0.906, "tasks": 128, "scored": 128, "label": "after rl", "seconds": 22.0}
        )
        metrics.write(
            {"kind": "eval", "step": 40, "set": "b", "accuracy": 0.852, "tasks": 128, "scored": 128, "label": "after rl", "seconds": 22.0}
        )
    with Store.open(run.database) as store:
        await store.put_tasks([Task(id="t7", instruction=f"Ann buys 12 apples at 34 each. What does she pay? {NASTY}")])
        for number in range(24):
            id, good = f"r{number}", number % 3 > 0
            start = Rollout(id=id, task_id="t7", unit=number // 8, index=number % 8, started_at=1000.0 + number)
            await store.start_rollout(start)
            ask = "<|im_start|>user\nAnn buys 12 apples at 34 each. What does she pay?<|im_end|>\n<|im_start|>assistant\n"
            use = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12 * 34"}}\n</tool_call><|im_end|>'
            tool = {"id": "c1", "name": "calculator", "arguments": '{"expression": "12 * 34"}'}
            first = call(tokenizer, id, 0, ask, use, response={"role": "assistant", "content": "", "tool_calls": [tool]})
            heard = "\n<|im_start|>tool\n<tool_response>408</tool_response><|im_end|>\n<|im_start|>assistant\n"
            second = call(tokenizer, id, 1, heard, f"She pays {408 if good else 42} 🙂 {NASTY if number == 0 else ''}<|im_end|>", first)
            for each in (first, second):
                await store.append(each)
            if number == 20:
                await store.append(
                    call(tokenizer, id, 2, heard, "She pays 408.", second, fork=Fork.EDITED, shared=3, finish=FinishReason.LENGTH)
                )
            outcome = Outcome.AGENT_ERROR if number == 5 else Outcome.FINISHED
            ended = {"outcome": outcome, "ended_at": 1002.0 + number, "detail": "the agent exited with code 1" if number == 5 else ""}
            reward = Reward(value=float(good)) if number != 5 else None
            await store.end_rollout(Rollout(**{**_fields(start), **ended, "reward": reward, "output": f"{408 if good else 42}\n"}))


def _fields(rollout: Rollout) -> dict[str, Any]:
    return {name: getattr(rollout, name) for name in Rollout.__dataclass_fields__}


async def make_run(folder: Path, tokenizer: Any) -> RunDir:
    run = RunDir.create(folder)
    run.config.write_text(RUN_FILE)
    tokenizer.save_pretrained(run.checkpoint(40))
    await record(run, tokenizer)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    run = asyncio.run(make_run(tmp_path_factory.mktemp("runs") / "run", byte_tokenizer()))
    assert write_report(run.path) == run.report
    return run


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.words += " " if tag in ("td", "th") else ""

    def handle_data(self, data: str) -> None:
        self.words += data


def test_a_whole_run_becomes_one_page_that_needs_nothing_else(run: RunDir) -> None:
    page = Page(run.report.read_text())
    assert page.open == []
    sources = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "href")]
    assert sources
    assert all(source and source.startswith("data:image/png;base64,") for source in sources)
    assert "url(" not in run.report.read_text()
    assert {path.stem for path in run.plots.glob("*.png")} == {
        "reward", "held_out", "evaluations", "entropy", "agreement", "staleness", "trained_share", "speed", "time", "loss", "sft",
        "positions",
    }  # fmt: skip
    words = " ".join(page.words.split())
    assert "+59.4 points by RL, from 31.2%" in words
    assert "cold start 0:41" in words
    assert "127 of 128" in words
    assert "80,820 instead of 360,000" in words


def test_domains_are_summed_over_the_run(run: RunDir) -> None:
    shop, code = summarise(read_metrics(run.metrics)).domains()
    assert (shop["groups"], shop["overdue"], shop["cut"], shop["refill"], shop["consumed_share"]) == (120, 20, 20, 0, 0.7)
    assert (code["groups"], code["reward_mean"]) == (0, None)
    assert re.search(r"shop</td>.*?120.*?70.0%.*?75.0%", run.report.read_text(encoding="utf-8"), re.DOTALL)


def test_recorded_text_is_never_markup(run: RunDir) -> None:
    page = Page(run.report.read_text())
    assert not [tag for tag, _ in page.tags if tag == "script"]
    assert NASTY in page.words  # in the task
    assert len(re.findall("alert", page.words)) > 1  # and in what was sampled


def test_a_run_without_any_row_has_a_report(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    run.config.write_text(RUN_FILE)
    assert "No step and no evaluation has been recorded yet." in write_report(run.path).read_text()


def test_a_folder_that_is_no_run_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run directory"):
        write_report(tmp_path)


def test_sampled_tokens_are_shown_exactly_once_in_order(run: RunDir) -> None:
    tokenizer = byte_tokenizer()
    with Store.open(run.database) as store:
        rollout = store.rollout("r20")
        assert rollout
        shown = view("", rollout, store, tokenizer)
    for each in shown.calls:
        assert "".join(span.text for span in each.spans) == tokenizer.decode(each.call.sampled)
        assert all(0 <= span.shade <= 1 for span in each.spans)
        assert [span.version for span in each.spans if span.version is not None] == [3, 4]
    assert shown.calls[0].tools == [("calculator", '{"expression": "12 * 34"}')]
    assert [each.parent for each in shown.calls] == [None, 0, 1]


def test_without_the_tokenizer_the_ids_are_shown(run: RunDir) -> None:
    with Store.open(run.database) as store:
        rollout = store.rollout("r1")
        assert rollout
        spans = view("", rollout, store, NumberDecoder()).calls[0].spans
        assert "".join(span.text for span in spans) == NumberDecoder().decode(store.calls("r1")[0].sampled)


def test_the_selection_shows_both_ends_and_every_odd_outcome(run: RunDir) -> None:
    with Store.open(run.database) as store:
        chosen = dict(select(store.rollouts()))
    assert chosen["early, lowest reward"].id == "r0"
    assert chosen["late, highest reward"].id == "r23"
    assert chosen["ended as agent error"].id == "r5"
    assert len({rollout.id for rollout in chosen.values()}) == len(chosen)


def test_a_step_recorded_twice_counts_once() -> None:
    rows = [
        {"kind": "step", "step": 1, "rollouts": 8},
        {"kind": "step", "step": 1, "rollouts": 9},
        {"kind": "step", "step": 2, "rollouts": 8},
    ]
    assert summarise(rows).total("rollouts") == 17


def test_every_reason_for_a_mask_has_a_colour() -> None:
    assert len(REASONS) >= len(MaskReason)
