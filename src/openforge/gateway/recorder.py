"""One call: runs its generation, keeps its events, and makes it durable before the reply ends.

Invariant: whatever happens (the client leaves, the rollout is closed, the engine fails), everything sampled is appended to the log exactly
once, and no reply is completed whose record is not durable.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from openforge.gateway.dialects.base import ApiError, BadRequest
from openforge.gateway.generation import Generation
from openforge.gateway.reply import End, Reply, ReplyEvent, Usage
from openforge.gateway.splice import Plan, Splicer
from openforge.gateway.turn import Message, Turn
from openforge.types import Call, CallLog, FinishReason, PromptTooLong, Sampling, Speaker


@dataclass(frozen=True, slots=True)
class Finished:
    reply: Reply
    end: End


@dataclass(frozen=True, slots=True)
class Failed:
    error: ApiError


RecorderEvent = ReplyEvent | Finished | Failed
"""Finished or Failed comes last, and once."""
Listener = Callable[[Sequence[RecorderEvent]], None]


class Feed:
    """Hands events on as they come, in the task of whoever puts them. What comes before anyone listens is kept until then."""

    def __init__(self) -> None:
        self._kept: list[Sequence[RecorderEvent]] = []
        self.put: Listener = self._kept.append
        """Takes the events of one step; none says that the model is at work."""

    def listen(self, listener: Listener) -> None:
        self.put = listener
        for events in self._kept:
            listener(events)
        self._kept.clear()


class Source(Protocol):
    """Where a reply's events come from: a call in flight, or one in the record."""

    id: str
    usage: Usage
    feed: Feed

    def abort(self) -> None:
        """Nobody takes the events any more."""
        ...


class Recorder:
    """A call in flight. Its task runs to its end whether or not anyone listens."""

    def __init__(
        self,
        *,
        generation: Generation,
        log: CallLog,
        splicer: Splicer,
        plan: Plan,
        turn: Turn,
        dialect: str,
        speaker: Speaker,
        sampling: Sampling,
        rollout_id: str,
        index: int,
        on_end: Callable[[Recorder, Call | None, Exception | None], None],
    ) -> None:
        """`on_end(recorder, call, error)` is called once: `call` is None if nothing was recorded, and `error` says why."""
        self.id = uuid.uuid4().hex
        self.feed = Feed()
        self.usage = Usage(prompt_tokens=len(plan.prompt_ids), cached_tokens=plan.shared)
        """As known before the first token."""
        self.finished: Finished | None = None
        """The reply, once it is complete and durable."""
        self._generation = generation
        self._log = log
        self._splicer = splicer
        self._plan = plan
        self._turn = turn
        self._dialect = dialect
        self._speaker = speaker
        self._sampling = sampling
        self._rollout_id = rollout_id
        self._index = index
        self._on_end = on_end
        self._reply = Reply()
        self._started_at = time.time()
        self._abortable = True
        self._entered = False
        self.task = asyncio.create_task(self._run(), name=f"call {self.id}")

    @property
    def sampled_tokens(self) -> int:
        """Sampled so far."""
        return len(self._generation.sampled)

    def abort(self) -> None:
        """Stop sampling; what was sampled is recorded. No effect on a call that is being recorded already."""
        # A task cancelled before its first step would never run at all, and so record nothing.
        if self._abortable and self._entered:
            self.task.cancel()
        self._abortable = False

    async def _run(self) -> None:
        result = await self._generate()
        if isinstance(result, PromptTooLong):
            self._splicer.forget(self._plan)
            self._on_end(self, None, result)
            self.feed.put([Failed(too_long(len(self._plan.prompt_ids)))])
            return
        try:
            if rest := self._generation.flush():
                self._show(rest)
        except Exception as failure:
            result = result if isinstance(result, Exception) else failure
        finish = result.finish if isinstance(result, End) else FinishReason.ERROR if isinstance(result, Exception) else FinishReason.ABORTED
        try:
            message = self._reply.message()
            call = self._call(finish, message, result if isinstance(result, Exception) else None)
            await self._log.append(call)
        except Exception as fault:
            self._on_end(self, None, fault)
            self.feed.put([Failed(ApiError(503, f"the call could not be recorded: {fault}", type="server_error", code="not_recorded"))])
            return
        self._splicer.commit(self._plan, call.id, call.sampled, None if finish == FinishReason.ERROR else message)
        self.finished = Finished(self._reply, result) if isinstance(result, End) else None
        self._on_end(self, call, None)
        if self.finished is not None:
            self.feed.put([self.finished])
        elif isinstance(result, ApiError):
            self.feed.put([Failed(result)])
        elif isinstance(result, Exception):
            self.feed.put([Failed(ApiError(500, f"the engine failed: {call.error}", type="server_error", code="engine_error"))])
        else:
            self.feed.put([Failed(ApiError(503, "the call was aborted", type="server_error", code="aborted"))])

    async def _generate(self) -> End | Exception | None:
        """The end of the reply, or what it failed with, or None if it was aborted."""
        self._entered = True
        if not self._abortable:
            return None
        try:
            return await self._generation.run(self._show)
        except asyncio.CancelledError:
            cast("asyncio.Task[None]", asyncio.current_task()).uncancel()
            return None
        except Exception as error:
            return error
        finally:
            self._abortable = False

    def _show(self, events: list[ReplyEvent]) -> None:
        self._reply.add(events)
        self.feed.put(events)

    def _call(self, finish: FinishReason, message: Message, error: Exception | None) -> Call:
        plan, turn = self._plan, self._turn
        request: dict[str, Any] = {
            **turn.fields,
            "messages_shared": plan.messages_shared,
            "messages": [message.record() for message in plan.messages],
        }
        # The tools are part of what a parent is found by, so a call with a parent has its parent's tools.
        if plan.parent is None and turn.tools:
            request["tools"] = [tool.record() for tool in turn.tools]
        sampled = self._generation.sampled
        return Call(
            id=self.id,
            rollout_id=self._rollout_id,
            index=self._index,
            parent_id=plan.parent.id if plan.parent is not None else None,
            shared=plan.shared,
            delta=plan.delta.tolist(),
            sampled=[token.id for token in sampled],
            logprobs=[token.logprob for token in sampled],
            versions=[token.version for token in sampled],
            fork=plan.fork,
            finish=finish,
            sampling=self._sampling,
            dialect=self._dialect,
            request=request,
            response=message.record(),
            speaker=self._speaker,
            upstream=self._generation.upstream,
            error=f"{type(error).__name__}: {error}" if error is not None else None,
            started_at=self._started_at,
            first_token_at=self._generation.first_token_at,
            ended_at=time.time(),
        )


def too_long(prompt_tokens: int) -> BadRequest:
    return BadRequest(
        f"the prompt of {prompt_tokens} tokens leaves no room for a reply in the model's context", code="context_length_exceeded"
    )
