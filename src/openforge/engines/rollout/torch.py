"""The embedded rollout engine: any Hugging Face causal language model, in this process, on the CPU or one GPU.

Invariant: the model, the keys and values and every request belong to one stepping thread. The asyncio side only posts to it, and gets back
whole steps at a time; weights change between two steps, never within one.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from openforge.engines.rollout.batch import build
from openforge.engines.rollout.kv import BLOCK, KV, Arena
from openforge.engines.rollout.model import DType, Model
from openforge.engines.rollout.sampler import sample
from openforge.engines.rollout.scheduler import Request, Scheduler
from openforge.engines.rollout.stops import Decode, load_decode, reached
from openforge.types import EngineStats, FinishReason, GenerationChunk, PromptTooLong, SampledToken, Sampling, VersionPolicy, Weights

_STEP_TOKENS = 512


class _Stream:
    """Where a request's chunks go: a queue of the event loop that asked."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[GenerationChunk | BaseException] = asyncio.Queue()

    async def next(self) -> GenerationChunk:
        """All that has come since the last call, at least one chunk."""
        items = [await self.queue.get()]
        while not self.queue.empty():
            items.append(self.queue.get_nowait())
        chunks: list[GenerationChunk] = []
        for item in items:
            if isinstance(item, BaseException):
                raise item
            chunks.append(item)
        return GenerationChunk(tokens=tuple(token for chunk in chunks for token in chunk.tokens), finish=chunks[-1].finish)


class TorchEngine:
    """`types.RolloutEngine` over transformers. Ready when constructed; its thread ends with `close`.

    model_dir: a Hugging Face folder (config, safetensors, and for stop strings the tokenizer); UserError when it cannot be used.
    dtype: of the body; the head is float32 always. max_batch: requests that decode together. kv_tokens: tokens whose keys and values fit,
    running and cached together; the context is at most this. threads: CPU threads of torch, which a process has one number of.
    """

    def __init__(
        self,
        model_dir: str | Path,
        *,
        dtype: DType = "auto",
        max_batch: int = 32,
        kv_tokens: int = 65_536,
        threads: int | None = None,
        prefix_cache: bool = True,
    ) -> None:
        self._model_dir = Path(model_dir)
        self._threads = threads
        self._model = Model(self._model_dir, dtype)
        size = max(kv_tokens // BLOCK, 2) * BLOCK
        self._arena = Arena(size, self._model.shapes, self._model.dtype, self._model.device)
        self._scheduler = Scheduler(
            kv=KV(self._arena, size, cache=prefix_cache),
            context=min(self._model.context, size),
            max_batch=max_batch,
            step_tokens=_STEP_TOKENS,
            share=not self._model.windowed,
        )
        self._decode: Decode | None = None
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._updates: deque[tuple[int, Weights, Callable[[BaseException | None], None]]] = deque()
        self._newest = 0
        self._paused = False
        self._closed = False
        self._outbox: dict[asyncio.AbstractEventLoop, list[tuple[_Stream, GenerationChunk | BaseException]]] = defaultdict(list)
        self._thread = threading.Thread(target=self._run, name="rollout-engine", daemon=True)
        self._thread.start()

    @property
    def dtype(self) -> torch.dtype:
        """Of the model's body."""
        return self._model.dtype

    @property
    def device(self) -> torch.device:
        return self._model.device

    @property
    def context_length(self) -> int:
        """Tokens of prompt and reply together that fit."""
        return self._scheduler.context

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, version_policy: VersionPolicy = VersionPolicy.RECOMPUTE
    ) -> AsyncGenerator[GenerationChunk, None]:
        if self._closed:
            raise RuntimeError("the rollout engine is closed")
        tokens = [int(token) for token in prompt_ids]
        if not tokens or not 0 <= min(tokens) <= max(tokens) < self._model.vocabulary:
            raise ValueError(f"a prompt is one or more token ids in 0 … {self._model.vocabulary - 1}")
        if len(tokens) >= self.context_length:
            raise PromptTooLong(f"the prompt has {len(tokens)} tokens and the context holds {self.context_length} with the reply")
        if sampling.stop and self._decode is None:
            self._decode = await asyncio.to_thread(load_decode, self._model_dir)
        stream = _Stream()
        request = Request(
            tokens=tokens,
            prompt=len(tokens),
            sampling=sampling,
            policy=version_policy,
            stream=stream,
            decode=self._decode if sampling.stop else None,
            random=random.Random(sampling.seed),
        )
        self._post(lambda: self._scheduler.waiting.append(request))
        finished = False
        try:
            while not finished:
                chunk = await stream.next()
                finished = chunk.finish is not None
                yield chunk
        finally:
            if not finished:
                self._post(lambda: self._scheduler.remove(request))

    async def update_weights(self, version: int, weights: Weights) -> None:
        """Copy `weights` in. ValueError when the version does not grow or a name or shape is not the model's; then nothing has changed.

        Returns once tokens carry `version`; with DRAIN requests in flight that is after they have finished (never, while paused).
        """
        if version <= self._newest:
            raise ValueError(f"weight versions only grow: {version} after {self._newest}")
        self._model.check(weights)
        self._newest = version
        await self._in_thread(lambda done: self._updates.append((version, weights, done)))

    async def pause(self) -> None:
        def pause(done: Callable[[BaseException | None], None]) -> None:
            self._paused = True
            done(None)

        await self._in_thread(pause)

    async def resume(self) -> None:
        def resume(done: Callable[[BaseException | None], None]) -> None:
            self._paused = False
            done(None)

        await self._in_thread(resume)

    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        return EngineStats(
            version=scheduler.version,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            prompt_tokens=scheduler.prompt_tokens,
            cached_tokens=scheduler.cached_tokens,
            sampled_tokens=scheduler.sampled_tokens,
        )

    async def close(self) -> None:
        """End the thread; requests in flight finish as aborted. Idempotent."""
        if not self._closed:
            self._closed = True
            with self._wake:
                self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    # --- between the threads ------------------------------------------------------------------------------------------------------------

    def _post(self, command: Callable[[], None]) -> None:
        with self._wake:
            self._posted.append(command)
            self._wake.notify()

    async def _in_thread(self, command: Callable[[Callable[[BaseException | None], None]], None]) -> None:
        """Run `command(done)` in the stepping thread between two steps, and wait until it has called `done`."""
        if self._closed:
            raise RuntimeError("the rollout engine is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self._post(lambda: command(lambda error: _call(loop, settle, error)))
        await future

    def _emit(self, request: Request, item: GenerationChunk | BaseException) -> None:
        self._outbox[request.stream.loop].append((request.stream, item))

    def _flush(self) -> None:
        for loop, items in self._outbox.items():
            _call(loop, _deliver, items)
        self._outbox.clear()

    # --- the stepping thread ------------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        scheduler = self._scheduler
        while True:
            with self._wake:
                while not self._posted and not self._closed and (self._paused or not (scheduler.running or scheduler.waiting)):
                    self._wake.wait()
                commands, self._posted = self._posted, deque()
            for command in commands:
                command()
            if self._closed:
                break
            while self._updates and not scheduler.draining():
                self._update(*self._updates.popleft())
            if not self._paused and (scheduler.running or scheduler.waiting):
                try:
                    self._step()
                except Exception as error:
                    self._fail(error)
                self._flush()
        for request in scheduler.reset():
            self._emit(request, GenerationChunk(finish=FinishReason.ABORTED))
        self._flush()
        for _, _, done in self._updates:
            done(RuntimeError("the rollout engine was closed before the update"))

    def _update(self, version: int, weights: Weights, done: Callable[[BaseException | None], None]) -> None:
        try:
            self._model.install(weights)
            self._scheduler.install(version)
        except Exception as error:
            self._fail(error)
            done(error)
        else:
            done(None)

    def _step(self) -> None:
        scheduler = self._scheduler
        work = scheduler.schedule(admit_new=not self._updates)
        if not work:
            return
        step, sampling, requests = build(work, self._arena)
        logits = self._model.logits(step, sampling)
        scheduler.advance(work)
        if not requests:
            return
        ids, logprobs = sample(logits, [r.sampling for r in requests], [r.random.random() for r in requests])
        for request, token, logprob in zip(requests, ids, logprobs, strict=True):
            request.tokens.append(token)
            scheduler.sampled_tokens += 1
            finish = self._finish(request)
            self._emit(request, GenerationChunk(tokens=(SampledToken(token, logprob, scheduler.version),), finish=finish))
            if finish:
                scheduler.remove(request)

    def _finish(self, request: Request) -> FinishReason | None:
        sampling, tokens = request.sampling, request.tokens
        if tokens[-1] in sampling.stop_token_ids:
            return FinishReason.STOP
        if request.decode and reached(tokens[request.prompt :], sampling.stop, request.decode):
            return FinishReason.STOP
        if request.sampled >= sampling.max_tokens or len(tokens) >= self.context_length:
            return FinishReason.LENGTH
        return None

    def _fail(self, error: Exception) -> None:
        """A step broke: every request gets the error, and the engine starts over with nothing computed."""
        for request in self._scheduler.reset():
            self._emit(request, error)
        for rows in (*self._arena.keys, *self._arena.values):
            rows.zero_()
        self._flush()


def _deliver(items: list[tuple[_Stream, GenerationChunk | BaseException]]) -> None:
    for stream, item in items:
        stream.queue.put_nowait(item)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], argument: Any) -> None:
    try:
        loop.call_soon_threadsafe(function, argument)
    except RuntimeError:
        # The loop has closed: nobody waits for this any more.
        if not loop.is_closed():
            raise
