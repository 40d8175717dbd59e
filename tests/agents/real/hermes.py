"""Plays a model that speaks Hermes: reads a prompt's ids back into turns, and answers in the format's own tokens.

What to answer is decided by what the prompt shows, never by when it came.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerFast

from openforge.gateway.text import encode, own_tokenizer
from openforge.types import EngineStats, FinishReason, GenerationChunk, SampledToken, Sampling, VersionPolicy, Weights

_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)
_TOOLS = re.compile(r".*<tools>\n(\{.*?\})\n</tools>", re.DOTALL)
_RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


@dataclass(frozen=True)
class Prompt:
    turns: list[tuple[str, str]]
    """(role, text), the last one being the reply's empty opening."""

    @property
    def tools(self) -> dict[str, dict[str, Any]]:
        """Name to schema of the arguments."""
        found = _TOOLS.match(self.turns[0][1]) if self.turns[0][0] == "system" else None
        rows = [json.loads(line) for line in found[1].splitlines()] if found else []
        return {row["name"]: row["parameters"] for row in rows}

    @property
    def results(self) -> list[str]:
        """Of all tool calls, in order."""
        return [result for role, text in self.turns if role == "user" for result in _RESULT.findall(text)]

    @property
    def replies(self) -> list[str]:
        return [text for role, text in self.turns if role == "assistant"][:-1]

    def says(self, text: str) -> bool:
        return any(text in content for _, content in self.turns)


Play = Callable[[Prompt], str]


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def think(reasoning: str, reply: str) -> str:
    return f"<think>\n{reasoning}\n</think>\n\n{reply}"


def told(*replies: str) -> Play:
    """One reply for each of the agent's turns; for agents that show the results of tools in words of their own."""
    return lambda prompt: replies[min(len(prompt.replies), len(replies) - 1)]


def steps(*replies: str, done: str = "The mean is right now and the test passes.", side: str = "Fix a failing test") -> Play:
    """One reply for each number of tool results; `done` when there are as many as replies; `side` where no tools are offered."""

    def play(prompt: Prompt) -> str:
        if not prompt.tools:
            return side
        return replies[len(prompt.results)] if len(prompt.results) < len(replies) else done

    return play


@dataclass(frozen=True)
class Generated:
    prompt: Prompt
    prompt_ids: list[int]
    sampled: list[int]


class PlayingEngine:
    """A rollout engine whose model is a function. Token i of a reply has log-probability -(i % 8)/8 and weight version 3."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, play: Play, context_length: int) -> None:
        self._tokenizer = own_tokenizer(tokenizer)
        self._end: int = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self._play = play
        self.context_length = context_length
        self.generated: list[Generated] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, version_policy: VersionPolicy = VersionPolicy.RECOMPUTE
    ) -> AsyncIterator[GenerationChunk]:
        prompt = Prompt(_TURN.findall(self._tokenizer.decode(list(prompt_ids), skip_special_tokens=False)))
        sampled = [*encode(self._tokenizer, self._play(prompt)), self._end]
        assert len(self.generated) < 40, "the play does not come to its end"
        self.generated.append(Generated(prompt, list(prompt_ids), sampled))
        for i, id in enumerate(sampled):
            await asyncio.sleep(0)
            yield GenerationChunk(tokens=(SampledToken(id, -(i % 8) / 8, 3),))
        yield GenerationChunk(finish=FinishReason.STOP)

    async def update_weights(self, version: int, weights: Weights) -> None: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    def stats(self) -> EngineStats:
        return EngineStats(version=3, running=0, waiting=0, prompt_tokens=0, cached_tokens=0, sampled_tokens=0)

    async def close(self) -> None: ...
