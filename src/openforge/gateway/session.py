"""An open rollout at the gateway: its sampling, its token budget, its lineages, its calls in flight.

Invariant: after `close` nothing is in flight and everything sampled is recorded.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import asdict, dataclass, field, replace

from openforge.gateway.dialects.base import BadRequest
from openforge.gateway.normaliser import Change
from openforge.gateway.recorder import Recorder, too_long
from openforge.gateway.reply import usage_of
from openforge.gateway.retries import Answer, Answers
from openforge.gateway.sampling import client_sampling
from openforge.gateway.splice import Plan, Splicer
from openforge.gateway.turn import Turn
from openforge.types import Call, FinishReason, PromptTooLong, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    calls: int = 0
    sampled_tokens: int = 0
    truncated: bool = False
    """The model ran into the context length or the rollout's token budget."""
    error: str | None = None
    """Why the engine failed the first call that it failed."""
    prefix_won: int = 0
    """Prompt tokens shared with an earlier call only because volatile text was taken out of both."""


@dataclass(eq=False, slots=True, kw_only=True)
class Session:
    rollout_id: str
    api_key: str
    sampling: Sampling | None
    """The run's, which counts instead of the clients'; None where the clients' own counts."""
    token_budget: int | None
    splicer: Splicer
    context_length: int
    in_flight: dict[Recorder, bytes] = field(default_factory=dict)
    """Recorder -> key of its request."""
    started: int = 0
    calls: int = 0
    sampled_tokens: int = 0
    truncated: bool = False
    error: str | None = None
    prefix_won: int = 0
    answers: Answers = field(default_factory=Answers)
    _removed: dict[str, tuple[Change, ...]] = field(default_factory=dict)
    """By call: what was taken out of its prompt."""

    def noted(self, turn: Turn, plan: Plan, changes: tuple[Change, ...]) -> Turn:
        """The turn, with what the normaliser took out of it and what that won in its fields, and so in its call's record."""
        if not changes:
            return turn
        won = plan.shared if plan.parent is not None and self._removed.get(plan.parent.id) != changes else 0
        report = {"removed": [asdict(change) for change in changes], "prefix_won": won}
        return replace(turn, fields={**turn.fields, "normalised": report})

    def began(self, recorder: Recorder, changes: tuple[Change, ...], key: bytes, *, stream: bool, retry: int) -> None:
        """A call is being sampled. `key` stands for what it asks."""
        self.in_flight[recorder] = key
        self.answers.begin(key, stream=stream, retry=retry)
        if changes:
            self._removed[recorder.id] = changes

    def room(self, plan: Plan) -> int:
        """Tokens the context and the rollout's budget leave for a reply. Raises BadRequest, and marks the session truncated, if none."""
        room = self.context_length - len(plan.prompt_ids)
        if room <= 0:
            self.truncated = True
            raise too_long(len(plan.prompt_ids))
        if self.token_budget is not None:
            left = self.token_budget - self.sampled_tokens - sum(recorder.sampled_tokens for recorder in self.in_flight)
            if left <= 0:
                self.truncated = True
                raise BadRequest(f"the rollout's budget of {self.token_budget} sampled tokens is used up", code="token_budget_exceeded")
            room = min(room, left)
        return room

    def sampling_for(self, turn: Turn, room: int, stop_token_ids: tuple[int, ...], index: int) -> Sampling:
        """The run's sampling (the client's where it has none), shortened by what the client asked for and by the room that is left, with
        a seed of the call's own. Raises BadRequest."""
        run = self.sampling or client_sampling(turn.fields)
        limits = [run.max_tokens, room] if turn.max_tokens is None else [run.max_tokens, room, turn.max_tokens]
        seed = None
        if self.sampling is None:
            seed = run.seed
        elif run.seed is not None:
            digest = hashlib.blake2b(f"{run.seed}/{index}".encode(), digest_size=8).digest()
            seed = int.from_bytes(digest, "big") >> 1
        return replace(
            run,
            max_tokens=min(limits),
            stop=tuple(dict.fromkeys((*run.stop, *turn.stop))),
            stop_token_ids=tuple(dict.fromkeys((*stop_token_ids, *run.stop_token_ids))),
            seed=seed,
        )

    def ended(self, recorder: Recorder, call: Call | None, error: Exception | None, *, room: int) -> None:
        key = self.in_flight.pop(recorder)
        if call is None:
            self.truncated |= isinstance(error, PromptTooLong)
            return
        self.calls += 1
        self.error = self.error or call.error
        sampled = usage_of(call).sampled_tokens
        self.sampled_tokens += sampled
        self.prefix_won += call.request.get("normalised", {}).get("prefix_won", 0)
        if recorder.finished is not None:
            self.answers.end(key, Answer(recorder.id, recorder.usage, recorder.finished))
        if call.finish == FinishReason.LENGTH and sampled >= room:
            self.truncated = True

    async def close(self) -> SessionSummary:
        tasks = [recorder.task for recorder in self.in_flight]
        for recorder in list(self.in_flight):
            recorder.abort()
        await asyncio.gather(*tasks)
        return SessionSummary(
            calls=self.calls,
            sampled_tokens=self.sampled_tokens,
            truncated=self.truncated,
            error=self.error,
            prefix_won=self.prefix_won,
        )
