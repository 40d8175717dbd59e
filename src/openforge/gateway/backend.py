"""What answers behind the gateway: the rollout engine and the model's format.

Invariant: the gateway's other parts see a backend and never an engine, so that an API of text can stand in its place.
"""

from __future__ import annotations

from typing import Any, Protocol

from openforge.gateway.formats.base import Format
from openforge.gateway.generation import Generation, TokenGeneration
from openforge.gateway.splice import Plan, Splicer
from openforge.gateway.text import own_tokenizer
from openforge.gateway.turn import Turn
from openforge.types import RolloutEngine, Sampling


class Backend(Protocol):
    context_length: int
    """Tokens of prompt and reply together."""
    stop_token_ids: tuple[int, ...]

    def splicer(self) -> Splicer:
        """For a rollout that opens."""
        ...

    def generation(self, plan: Plan, turn: Turn, sampling: Sampling) -> Generation: ...


class EngineBackend:
    def __init__(self, engine: RolloutEngine, format: Format, tokenizer: Any) -> None:
        """`tokenizer`: a Hugging Face fast tokenizer."""
        self.context_length = engine.context_length
        self.stop_token_ids = format.stop_token_ids
        self._engine = engine
        self._format = format
        self._tokenizer = own_tokenizer(tokenizer)

    def splicer(self) -> Splicer:
        return Splicer(self._format, self._tokenizer)

    def generation(self, plan: Plan, turn: Turn, sampling: Sampling) -> Generation:
        return TokenGeneration(
            engine=self._engine, format=self._format, tokenizer=self._tokenizer, plan=plan, tools=turn.tools, sampling=sampling
        )
