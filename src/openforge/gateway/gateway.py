"""The gateway: rollouts that are open, and calls that are made for them.

Invariant: a call is made only for an open rollout, and within its limits. A log that fails is a fault of the whole run: every call is
refused with a 503 from then on, and whoever runs the gateway reads `fault` and stops.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

from openforge.gateway.backend import Backend
from openforge.gateway.dialects.base import ApiError
from openforge.gateway.identity import identify
from openforge.gateway.limits import Limits
from openforge.gateway.metrics import GatewayMetrics
from openforge.gateway.normaliser import normalise
from openforge.gateway.recorder import Recorder, Source
from openforge.gateway.relay import Patience
from openforge.gateway.retries import Replay, request_key
from openforge.gateway.session import Session, SessionSummary
from openforge.gateway.splice import Plan
from openforge.gateway.turn import Turn
from openforge.types import Call, CallLog, FinishReason, PromptTooLong, Sampling, Speaker


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How an agent reaches its rollout: the path below the gateway's address (the dialects' own paths follow it), and the API key."""

    path: str
    api_key: str


class Gateway:
    def __init__(
        self,
        backend: Backend,
        log: CallLog,
        *,
        model_name: str,
        patience: Patience = Patience(),  # noqa: B008 (frozen)
        limits: Limits = Limits(),  # noqa: B008 (frozen)
    ) -> None:
        self.fault: Exception | None = None
        """Why the log failed, once it has."""
        self.context_length = backend.context_length
        self._backend = backend
        self._log = log
        self.model_name = model_name
        self.patience = patience
        self.limits = limits
        self.in_flight = 0
        """Calls being made, those of rollouts that are closing included."""
        self._sessions: dict[str, Session] = {}
        self._keys: dict[str, str] = {}
        self.metrics = GatewayMetrics(open_rollouts=lambda: self.open_rollouts, in_flight=lambda: self.in_flight)
        self.recorded = 0
        """Calls that are in the log."""

    def open(self, rollout_id: str, *, sampling: Sampling | None, token_budget: int | None = None) -> Access:
        """Accept calls of a rollout. `sampling`: None where the clients' own parameters count. `token_budget`: tokens it may sample over
        all its calls."""
        assert rollout_id not in self._sessions, f"rollout {rollout_id} is open already"
        session = Session(
            rollout_id=rollout_id,
            api_key=f"sk-{secrets.token_urlsafe(24)}",
            sampling=sampling,
            token_budget=token_budget,
            splicer=self._backend.splicer(),
            context_length=self._backend.context_length,
        )
        self._sessions[rollout_id] = session
        self._keys[session.api_key] = rollout_id
        return Access(path=f"/r/{rollout_id}", api_key=session.api_key)

    async def close(self, rollout_id: str) -> SessionSummary:
        """Abort what is in flight, wait until it is recorded, forget the rollout. Closing one that is not open does nothing."""
        session = self._sessions.pop(rollout_id, None)
        if session is None:
            return SessionSummary()
        del self._keys[session.api_key]
        return await session.close()

    @property
    def open_rollouts(self) -> int:
        return len(self._sessions)

    def progress(self, rollout_id: str) -> dict[str, int]:
        """Counts of an open rollout."""
        session = self._sessions[rollout_id]
        return {"calls": session.calls, "in_flight": len(session.in_flight), "sampled_tokens": session.sampled_tokens}

    async def close_all(self) -> None:
        await asyncio.gather(*(self.close(rollout_id) for rollout_id in list(self._sessions)))

    def session(self, path_rollout: str | None, headers: Mapping[str, str], query: Mapping[str, str]) -> Session:
        """Whose request this is. Raises ApiError."""
        rollout_id = identify(path_rollout, headers, self._keys, query)
        if rollout_id not in self._sessions:
            raise _not_open(rollout_id)
        return self._sessions[rollout_id]

    async def start(self, session: Session, turn: Turn, dialect: str, speaker: Speaker) -> Source:
        """Begin a call, or show a recorded one to a client that asks for it again.

        Raises ApiError when it cannot be made; then nothing is recorded.
        """
        self._check()
        turn, changes = normalise(turn)
        plan = session.splicer.plan(turn.messages, turn.tools)
        key = request_key(plan, turn, dialect)
        if (answer := session.answers.find(key, stream=turn.stream, retry=speaker.retry)) is not None:
            self.metrics.replayed()
            return Replay(answer)
        turn = session.noted(turn, plan, changes)
        session.splicer.begin(plan)
        try:
            await plan.tokenise()
            recorder = self._record(session, plan, turn, dialect, speaker)
        except BaseException:
            session.splicer.forget(plan)
            raise
        self.in_flight += 1
        session.began(recorder, changes, key, stream=turn.stream, retry=speaker.retry)
        return recorder

    def _record(self, session: Session, plan: Plan, turn: Turn, dialect: str, speaker: Speaker) -> Recorder:
        self._check()
        self._check_open(session)
        self._check_load(session)
        room = session.room(plan)
        index = session.started
        session.started += 1

        def ended(recorder: Recorder, call: Call | None, error: Exception | None) -> None:
            if error is not None and not isinstance(error, PromptTooLong):
                self.fault = self.fault or error
            self.in_flight -= 1
            session.ended(recorder, call, error, room=room)
            if call is not None:
                self.recorded += 1
                self.metrics.recorded(call)

        sampling = session.sampling_for(turn, room, self._backend.stop_token_ids, index)
        return Recorder(
            generation=self._backend.generation(plan=plan, turn=turn, dialect=dialect, sampling=sampling, clients=session.sampling is None),
            log=self._log,
            splicer=session.splicer,
            plan=plan,
            turn=turn,
            dialect=dialect,
            speaker=speaker,
            sampling=sampling,
            rollout_id=session.rollout_id,
            index=index,
            on_end=ended,
        )

    async def count(self, session: Session, turn: Turn, dialect: str, speaker: Speaker) -> int:
        """Tokens of the turn's prompt. The question is recorded as a call that samples nothing and stores no prompt. Raises ApiError."""
        self._check()
        turn, _ = normalise(turn)
        plan = session.splicer.plan(turn.messages, turn.tools)
        await plan.tokenise()
        tokens = await self._backend.count(plan, turn)
        self._check_open(session)
        now = time.time()
        call = Call(
            id=uuid.uuid4().hex,
            rollout_id=session.rollout_id,
            index=session.started,
            parent_id=None,
            shared=0,
            delta=[],
            sampled=[],
            logprobs=[],
            versions=[],
            finish=FinishReason.STOP,
            sampling=session.sampling or Sampling(),
            dialect=dialect,
            request={"prompt_tokens": tokens},
            response={},
            speaker=replace(speaker, purpose="count_tokens"),
            started_at=now,
            ended_at=now,
        )
        session.started += 1
        try:
            await self._log.append(call)
        except Exception as fault:
            self.fault = self.fault or fault
            self._check()
        return tokens

    def _check(self) -> None:
        if self.fault is not None:
            raise ApiError(503, f"calls can no longer be recorded: {self.fault}", type="server_error", code="not_recorded")

    def _check_open(self, session: Session) -> None:
        if self._sessions.get(session.rollout_id) is not session:
            raise _not_open(session.rollout_id)

    def _check_load(self, session: Session) -> None:
        for who, calls, limit in (
            ("gateway", self.in_flight, self.limits.calls),
            ("rollout", len(session.in_flight), self.limits.calls_per_rollout),
        ):
            if calls >= limit:
                message = f"the {who} has {calls} calls in flight; try again later"
                raise ApiError(429, message, type="rate_limit_error", code="too_many_calls", headers={"retry-after": "1"})


def _not_open(rollout_id: str) -> ApiError:
    return ApiError(404, f"rollout {rollout_id!r} is not open", type="not_found_error", code="rollout_not_found")
