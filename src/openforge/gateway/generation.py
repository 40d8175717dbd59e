"""What produces a reply: token by token from the rollout engine.

Invariant: every sampled token is in `sampled`, whatever happens; the events shown add up to what was sampled, less the token or the string
that ended it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any, Protocol, cast

from tokenizers import Tokenizer

from openforge.gateway.formats.base import Format
from openforge.gateway.reply import End, ReasoningDelta, ReplyEvent, Usage
from openforge.gateway.splice import Plan
from openforge.gateway.text import Detokenizer, StopTrimmer
from openforge.gateway.turn import Tool
from openforge.types import FinishReason, RolloutEngine, SampledToken, Sampling

Emit = Callable[[list[ReplyEvent]], None]
"""Takes the events of one step; an empty list says that the model is at work."""


class Generation(Protocol):
    """One reply in the making."""

    sampled: list[SampledToken]
    """Empty where an upstream API gives text only."""
    first_token_at: float | None

    @property
    def upstream(self) -> dict[str, Any]:
        """What that API told of the reply (see `types.Call`); complete when `run` has ended."""
        ...

    async def run(self, emit: Emit) -> End:
        """Produce the reply. Raises what the engine raises; cancellation stops the engine.

        Raises `PromptTooLong` before anything is sampled when the prompt does not fit.
        """
        ...

    def flush(self) -> list[ReplyEvent]:
        """What was held back: called once after `run`, however that ended."""
        ...


class TokenGeneration:
    def __init__(
        self, *, engine: RolloutEngine, format: Format, tokenizer: Tokenizer, plan: Plan, tools: Sequence[Tool], sampling: Sampling
    ) -> None:
        self.sampled: list[SampledToken] = []
        self.first_token_at: float | None = None
        self.upstream: dict[str, Any] = {}
        self._engine = engine
        self._plan = plan
        self._sampling = sampling
        self._stop_ids = frozenset(sampling.stop_token_ids)
        self._detokenizer = Detokenizer(tokenizer)
        self._trimmer = StopTrimmer(sampling.stop)
        self._parser = format.parser(tools)
        self._reasoning_tokens = 0

    async def run(self, emit: Emit) -> End:
        # Protocols type the stream as an iterator; every engine's is a generator, and closing it cancels the request.
        stream = cast("Any", self._engine.generate(self._plan.prompt_ids, self._sampling))
        async with aclosing(stream):
            async for chunk in stream:
                self._take(chunk.tokens, emit)
                if chunk.finish is not None:
                    return self._end(chunk.finish)
        raise RuntimeError("its stream ended without a finish reason")

    def flush(self) -> list[ReplyEvent]:
        rest = self._trimmer.feed(self._detokenizer.finish()) + self._trimmer.finish()
        return [*(self._parser.feed(rest) if rest else []), *self._parser.finish()]

    def _take(self, tokens: tuple[SampledToken, ...], emit: Emit) -> None:
        if not tokens:
            return
        if self.first_token_at is None:
            self.first_token_at = time.time()
        self.sampled.extend(tokens)
        text = "".join([self._detokenizer.push(token.id) for token in tokens if token.id not in self._stop_ids])
        events = self._parser.feed(shown) if (shown := self._trimmer.feed(text)) else []
        if events and isinstance(events[-1], ReasoningDelta):
            self._reasoning_tokens += len(tokens)
        emit(events)

    def _end(self, finish: FinishReason) -> End:
        usage = Usage(
            prompt_tokens=len(self._plan.prompt_ids),
            cached_tokens=self._plan.shared,
            sampled_tokens=len(self.sampled),
            reasoning_tokens=self._reasoning_tokens,
        )
        return End(finish=finish, usage=usage, stop=self._trimmer.stopped)
