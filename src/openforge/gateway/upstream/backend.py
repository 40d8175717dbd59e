"""An upstream API in the engine's place.

Invariant: calls are stored as parent and delta of messages, as with an engine, while every count of tokens is the API's own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from tokenizers import Tokenizer, models

from openforge.gateway.dialects.base import ApiError
from openforge.gateway.formats.base import ReplyParser
from openforge.gateway.generation import Emit
from openforge.gateway.reply import End, ReplyEvent
from openforge.gateway.sampling import UNLIMITED
from openforge.gateway.splice import Plan, Splicer
from openforge.gateway.turn import Message, Tool, Turn
from openforge.gateway.upstream.base import Ask, Told, UpstreamApi, checked
from openforge.types import SampledToken, Sampling

_NONSENSE = (ValueError, TypeError, AttributeError, LookupError, AssertionError)
"""What reading an answer raises that has another shape than its dialect's."""


class UpstreamBackend:
    """Implements `gateway.backend.Backend`."""

    def __init__(self, api: UpstreamApi) -> None:
        self.context_length = UNLIMITED
        self.stop_token_ids: tuple[int, ...] = ()
        self._api = api

    def splicer(self) -> Splicer:
        return Splicer(NoFormat(), Tokenizer(models.BPE()))

    def generation(self, *, plan: Plan, turn: Turn, dialect: str, sampling: Sampling, clients: bool) -> UpstreamGeneration:
        return UpstreamGeneration(self._api, Ask(turn=turn, dialect=dialect, sampling=sampling, clients=clients))

    async def count(self, plan: Plan, turn: Turn) -> int:
        return await self._api.count(turn)


class UpstreamGeneration:
    def __init__(self, api: UpstreamApi, ask: Ask) -> None:
        self.sampled: list[SampledToken] = []
        self.first_token_at: float | None = None
        self._api = api
        self._ask = ask
        self._told = Told()

    @property
    def upstream(self) -> dict[str, Any]:
        return self._told.record()

    async def run(self, emit: Emit) -> End:
        told = Told()
        try:
            async with aclosing(self._api.stream(self._ask, told)) as stream:
                async for events in stream:
                    self._told = checked(told)
                    if events and self.first_token_at is None:
                        self.first_token_at = time.time()
                    emit([checked(event) for event in events])
        except _NONSENSE as error:
            why = f"the upstream's stream makes no sense: {type(error).__name__}: {error}"
            raise ApiError(502, why, type="server_error", code="upstream_error") from None
        return self._told.end()

    def flush(self) -> list[ReplyEvent]:
        return []


class NoFormat:
    """The API renders messages itself: they are no text here, and no ids."""

    name = "none"
    stop_token_ids: tuple[int, ...] = ()
    closing_token_ids: frozenset[int] = frozenset()

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        return ""

    def opening(self, tools: Sequence[Tool], *, after: Message) -> str:
        return ""

    def reply(self, message: Message) -> str:
        return ""

    def continuation(self, messages: Sequence[Message], tools: Sequence[Tool], *, after: Message, closed: bool) -> str:
        return ""

    def parser(self, tools: Sequence[Tool]) -> ReplyParser:
        raise AssertionError("an API's reply is no text to parse")
