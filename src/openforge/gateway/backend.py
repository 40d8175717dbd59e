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

    def generation(self, *, plan: Plan, turn: Turn, dialect: str, sampling: Sampling, clients: bool) -> Generation:
        """`dialect`: the one the client speaks. `clients`: whether `sampling` is the client's own, and not the run's."""
        ...

    async def count(self, plan: Plan, turn: Turn) -> int:
        """Tokens of the turn's prompt. Raises ApiError where nobody can count them."""
        ...


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

    async def count(self, plan: Plan, turn: Turn) -> int:
        return len(plan.prompt_ids)

    def generation(self, *, plan: Plan, turn: Turn, dialect: str, sampling: Sampling, clients: bool) -> Generation:
        return TokenGeneration(
            engine=self._engine, format=self._format, tokenizer=self._tokenizer, plan=plan, tools=turn.tools, sampling=sampling
        )
