"""One call: drives the engine, turns ids into events, and makes the call durable before the reply ends.

Invariant: whatever happens (the client leaves, the rollout is closed, the engine fails), everything sampled is appended to the log exactly
once, and no reply is completed whose record is not durable.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from tokenizers import Tokenizer

from openforge.gateway.dialects.base import ApiError, BadRequest, Usage
from openforge.gateway.formats.base import Format
from openforge.gateway.reply import Reply, ReplyEvent
from openforge.gateway.splice import Plan, Splicer
from openforge.gateway.text import Detokenizer, StopTrimmer
from openforge.gateway.turn import Message, Turn
from openforge.types import Call, CallLog, FinishReason, PromptTooLong, RolloutEngine, SampledToken, Sampling


class Started:
    """The first token is there."""


@dataclass(frozen=True, slots=True)
class Finished:
    message: Message
    finish: FinishReason
    usage: Usage


@dataclass(frozen=True, slots=True)
class Failed:
    error: ApiError


RecorderEvent = Started | ReplyEvent | Finished | Failed
"""Finished or Failed comes last, and once."""


class Recorder:
    """A call in flight. Its task runs to its end whether or not anyone reads `events`."""

    def __init__(
        self,
        *,
        engine: RolloutEngine,
        log: CallLog,
        format: Format,
        tokenizer: Tokenizer,
        splicer: Splicer,
        plan: Plan,
        turn: Turn,
        dialect: str,
        sampling: Sampling,
        rollout_id: str,
        index: int,
        on_end: Callable[[Recorder, Call | None, Exception | None], None],
    ) -> None:
        """`on_end(recorder, call, error)` is called once: `call` is None if nothing was recorded, and `error` says why."""
        self.id = uuid.uuid4().hex
        self.sampling = sampling
        self.sampled: list[SampledToken] = []
        self.events: asyncio.Queue[RecorderEvent] = asyncio.Queue()
        self._engine = engine
        self._log = log
        self._splicer = splicer
        self._plan = plan
        self._turn = turn
        self._dialect = dialect
        self._rollout_id = rollout_id
        self._index = index
        self._on_end = on_end
        self._stop_ids = frozenset(sampling.stop_token_ids)
        self._detokenizer = Detokenizer(tokenizer)
        self._trimmer = StopTrimmer(sampling.stop)
        self._parser = format.parser()
        self._reply = Reply()
        self._started_at = time.time()
        self._first_token_at: float | None = None
        self._abortable = True
        self._entered = False
        splicer.begin(plan)
        self.task = asyncio.create_task(self._run(), name=f"call {self.id}")

    def abort(self) -> None:
        """Stop sampling; what was sampled is recorded. No effect on a call that is being recorded already."""
        # A task cancelled before its first step would never run at all, and so record nothing.
        if self._abortable and self._entered:
            self.task.cancel()
        self._abortable = False

    async def _run(self) -> None:
        finish, error = await self._sample()
        if isinstance(error, PromptTooLong):
            self._splicer.forget(self._plan)
            self._on_end(self, None, error)
            self.events.put_nowait(Failed(too_long(len(self._plan.prompt_ids))))
            return
        try:
            self._show(self._trimmer.feed(self._detokenizer.finish()) + self._trimmer.finish())
            self._emit(self._parser.finish())
        except Exception as failure:
            finish, error = FinishReason.ERROR, error or failure
        message = self._reply.message()
        call = self._call(finish, message, error)
        try:
            await self._log.append(call)
        except Exception as fault:
            self._on_end(self, None, fault)
            self.events.put_nowait(
                Failed(ApiError(503, f"the call could not be recorded: {fault}", type="server_error", code="not_recorded"))
            )
            return
        sampled = call.sampled
        self._splicer.commit(self._plan, call.id, sampled, None if finish == FinishReason.ERROR else message)
        self._on_end(self, call, None)
        if finish == FinishReason.ERROR:
            self.events.put_nowait(Failed(ApiError(500, f"the engine failed: {call.error}", type="server_error", code="engine_error")))
        elif finish == FinishReason.ABORTED:
            self.events.put_nowait(Failed(ApiError(503, "the call was aborted", type="server_error", code="aborted")))
        else:
            self.events.put_nowait(Finished(message, finish, Usage(prompt_tokens=len(self._plan.prompt_ids), sampled_tokens=len(sampled))))

    async def _sample(self) -> tuple[FinishReason, Exception | None]:
        self._entered = True
        if not self._abortable:
            return FinishReason.ABORTED, None
        try:
            # Protocols type the stream as an iterator; every engine's is a generator, and closing it cancels the request.
            stream = cast("Any", self._engine.generate(self._plan.prompt_ids, self.sampling))
            async with aclosing(stream):
                async for chunk in stream:
                    self._take(chunk.tokens)
                    if chunk.finish is not None:
                        return chunk.finish, None
            raise RuntimeError("its stream ended without a finish reason")
        except asyncio.CancelledError:
            cast("asyncio.Task[None]", asyncio.current_task()).uncancel()
            return FinishReason.ABORTED, None
        except Exception as error:
            return FinishReason.ERROR, error
        finally:
            self._abortable = False

    def _take(self, tokens: tuple[SampledToken, ...]) -> None:
        if tokens and self._first_token_at is None:
            self._first_token_at = time.time()
            self.events.put_nowait(Started())
        self.sampled.extend(tokens)
        text = "".join(self._detokenizer.push(token.id) for token in tokens if token.id not in self._stop_ids)
        self._show(self._trimmer.feed(text))

    def _show(self, text: str) -> None:
        if text:
            self._emit(self._parser.feed(text))

    def _emit(self, events: list[ReplyEvent]) -> None:
        self._reply.add(events)
        for event in events:
            self.events.put_nowait(event)

    def _call(self, finish: FinishReason, message: Message, error: Exception | None) -> Call:
        plan, turn = self._plan, self._turn
        request = {
            **turn.fields,
            "messages_shared": plan.messages_shared,
            "messages": [message.record() for message in turn.messages[plan.messages_shared :]],
        }
        # The tools are part of what a parent is found by, so a call with a parent has its parent's tools.
        if plan.parent is None and turn.tools:
            request["tools"] = [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in turn.tools]
        return Call(
            id=self.id,
            rollout_id=self._rollout_id,
            index=self._index,
            parent_id=plan.parent.id if plan.parent is not None else None,
            shared=plan.shared,
            delta=plan.delta,
            sampled=[token.id for token in self.sampled],
            logprobs=[token.logprob for token in self.sampled],
            versions=[token.version for token in self.sampled],
            fork=plan.fork,
            finish=finish,
            sampling=self.sampling,
            dialect=self._dialect,
            request=request,
            response=message.record(),
            error=f"{type(error).__name__}: {error}" if error is not None else None,
            started_at=self._started_at,
            first_token_at=self._first_token_at,
            ended_at=time.time(),
        )


def too_long(prompt_tokens: int) -> BadRequest:
    return BadRequest(
        f"the prompt of {prompt_tokens} tokens leaves no room for a reply in the model's context", code="context_length_exceeded"
    )
