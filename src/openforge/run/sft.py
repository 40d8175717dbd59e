"""Cold start: supervised fine-tuning on chat transcripts with tool calls.

Invariant: transcripts are rendered by the same format as the gateway's prompts, and exactly the assistant's replies, end-of-turn token
included, are trained: what the model learns to write is what the gateway will let it write.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from pydantic import Field
from tokenizers import Tokenizer

from openforge.coordinator import delivered, mask_beyond
from openforge.engines.training import TrainEngine, TrainSettings
from openforge.gateway.dialects.chat import read_messages, read_tools
from openforge.gateway.formats import Format, load_format
from openforge.gateway.text import encode, own_tokenizer
from openforge.gateway.turn import Message, Tool
from openforge.rl import token_weights
from openforge.run.models import load_tokenizer
from openforge.trees import build
from openforge.types import LineageKind, Settings, Trajectory, UserError

Report = Callable[[dict[str, Any], int, int], None]


class SftSettings(Settings):
    """The `sft` section of a run file: where the cold start's transcripts are, and how hard to learn them."""

    data: Path
    """JSONL; each line an object with `messages` and, optionally, `tools`, as in a Chat Completions request."""
    epochs: int = Field(default=1, ge=1)
    batch_size: int = Field(default=8, ge=1)
    """Transcripts an optimizer step."""
    learning_rate: float = Field(default=1e-5, gt=0)


def fine_tune(
    model_dir: Path, config: SftSettings, *, train: TrainSettings, format_name: str | None, seed: int, report: Report
) -> TrainEngine:
    """Fine-tune the model in `model_dir`; returns the engine that holds it. `report` gets each step's metrics, its number and the total."""
    tokenizer = load_tokenizer(model_dir)
    rows = load_transcripts(config.data, load_format(format_name, tokenizer), own_tokenizer(tokenizer))
    batches = list(_batches(rows, config, seed))
    update = {"loss": "nll", "learning_rate": config.learning_rate, "steps": len(batches), "warmup_steps": 0, "decay": "linear"}
    engine = TrainEngine(model_dir, train.model_copy(update=update), threads=os.cpu_count())
    for step, batch in enumerate(batches, 1):
        rows = [mask_beyond(row, engine.context_length) for row in batch]
        tree = build(rows, {row.rollout_id: 1.0 for row in rows}, token_weights(rows, "token"), engine.vocabulary)
        report({**engine.step([tree]), "masked": delivered(rows).masked}, step, len(batches))
    return engine


def load_transcripts(path: Path, format: Format, tokenizer: Tokenizer) -> list[Trajectory]:
    """Read, render and tokenise the transcripts of a JSONL file. A line that is not one raises `UserError` with its number."""
    rows = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UserError(f"sft.data: cannot read {path}: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            body = msgspec.json.decode(line, type=dict)
            rows.append(
                transcript(read_messages(body["messages"]), read_tools(body.get("tools") or []), format, tokenizer, name=f"{path}:{number}")
            )
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}:{number}: not a chat transcript: {error!r}; expected an object with `messages` and `tools`") from None
    if not rows:
        raise UserError(f"sft.data: {path} holds no transcript")
    return rows


def transcript(messages: Sequence[Message], tools: Sequence[Tool], format: Format, tokenizer: Tokenizer, *, name: str) -> Trajectory:
    """Render a finished conversation into one trajectory whose replies count as sampled (with log-probability 0, version 0).

    `name` stands for the rollout's id.
    """
    ids: list[int] = []
    sampled: list[bool] = []

    def add(text: str, reply: bool) -> None:
        new = encode(tokenizer, text)
        ids.extend(new)
        sampled.extend([reply] * len(new))

    since = 0
    for index, message in enumerate(messages):
        if message.role != "assistant":
            continue
        context = messages[since:index]
        add(
            format.continuation(context, tools, after=messages[since - 1], closed=True) if since else format.prompt(context, tools),
            reply=False,
        )
        add(format.reply(message), reply=True)
        since = index + 1
    if not since:
        raise ValueError("no assistant message to learn from")
    mask = np.array(sampled, dtype=np.bool_)
    return Trajectory(
        rollout_id=name,
        kind=LineageKind.MAIN,
        call_ids=[],
        ends=np.empty(0, dtype=np.int32),
        tokens=np.array(ids, dtype=np.int32),
        sampled=mask,
        trained=mask,
        logprobs=np.zeros(len(ids), dtype=np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        masked={},
    )


def _batches(rows: Sequence[Trajectory], settings: SftSettings, seed: int) -> Iterator[list[Trajectory]]:
    rng = random.Random(seed)
    for _ in range(settings.epochs):
        shuffled = rng.sample(rows, len(rows))
        for start in range(0, len(rows), settings.batch_size):
            yield shuffled[start : start + settings.batch_size]
