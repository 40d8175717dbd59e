"""Which requests run, where their keys and values lie, and what the next step computes.

Invariant: every token's keys and values are computed under the scheduler's current weight version before any later token of its request is;
what is held under an older version is dropped when the version changes. All methods run in the engine's own thread.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from openforge.engines.rollout.kv import BLOCK, KV
from openforge.engines.rollout.stops import Decode
from openforge.types import Sampling, VersionPolicy

_HEADROOM = 64
_SHARE_AT_LEAST = 64


@dataclass(slots=True, eq=False)
class Piece:
    """A region of the arena that holds, or will hold, `tokens` from the end of `prefix` on; `held` of them are computed."""

    tokens: list[int]
    prefix: Piece | None
    start: int
    capacity: int
    held: int = 0
    started: bool = False
    cached: bool = False
    """Its prompt has been put into the prefix cache: the whole of it is computed."""
    users: int = 0
    uncounted: int = 0
    """Of a shared prefix: tokens that had to be computed, until they are counted to the first of its users."""

    @property
    def offset(self) -> int:
        return len(self.prefix.tokens) if self.prefix else 0

    @property
    def computed(self) -> int:
        return self.offset + self.held

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.computed

    def rows(self, count: int) -> list[int]:
        """Arena rows of the first `count` tokens."""
        head = self.prefix.rows(min(count, self.offset)) if self.prefix else []
        return head + list(range(self.start, self.start + count - len(head)))


@dataclass(slots=True, eq=False)
class Request:
    tokens: list[int]
    """Prompt and what was sampled."""
    prompt: int
    sampling: Sampling
    policy: VersionPolicy
    stream: Any
    decode: Decode | None
    random: random.Random
    piece: Piece | None = None
    counted: bool = False

    @property
    def sampled(self) -> int:
        return len(self.tokens) - self.prompt


@dataclass(frozen=True, slots=True)
class Work:
    """The next `count` tokens of `piece`; `request` samples after them, when set."""

    piece: Piece
    count: int
    request: Request | None


@dataclass(slots=True)
class Scheduler:
    kv: KV
    context: int
    max_batch: int
    step_tokens: int
    """Prompt tokens computed in one step at most, beside the decoding requests."""
    share: bool
    """Whether requests that wait together and begin alike share one copy of their common prefix."""
    version: int = 0
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    prefixes: list[Piece] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0

    def draining(self) -> bool:
        """Whether some request must finish under the current weights."""
        return any(r.policy is VersionPolicy.DRAIN and (r.sampled or r in self.running) for r in (*self.running, *self.waiting))

    def install(self, version: int) -> None:
        """The weights have changed: everything computed is stale. Requests keep their order."""
        self.kv.clear()
        self.version = version
        for request in reversed(self.running):
            self._release(request)
            self.waiting.appendleft(request)
        self.running.clear()
        assert not self.prefixes

    def remove(self, request: Request) -> None:
        """A finished or cancelled request leaves; what it computed goes into the prefix cache."""
        if request in self.running:
            self.running.remove(request)
            piece = request.piece
            assert piece is not None
            if piece.started and not (piece.prefix and piece.prefix.pending):
                self.kv.insert(piece.tokens[: piece.computed], self.version, piece.rows(piece.computed))
            self._release(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def reset(self) -> list[Request]:
        """Forget every request and everything computed; returns the requests."""
        lost = [*self.running, *self.waiting]
        for request in self.running:
            self._release(request)
        self.running.clear()
        self.waiting.clear()
        self.kv.clear()
        return lost

    def schedule(self, *, admit_new: bool) -> list[Work]:
        """The next step's work: one token of every request that decodes, then chunks of prompts."""
        self._admit(admit_new)
        return self._decodes() + self._chunks()

    def advance(self, work: Sequence[Work]) -> None:
        """The step has computed `work`."""
        for item in work:
            piece = item.piece
            piece.held += item.count
            if not piece.pending and not piece.cached:
                piece.cached = True
                self.kv.insert(piece.tokens, self.version, piece.rows(len(piece.tokens)))

    # --- admission ----------------------------------------------------------------------------------------------------------------------

    def _admit(self, admit_new: bool) -> None:
        held_back: list[Request] = []
        while self.waiting and len(self.running) < self.max_batch:
            request = self.waiting[0]
            if not admit_new and not (request.policy is VersionPolicy.DRAIN and request.sampled):
                held_back.append(self.waiting.popleft())
                continue
            if not self._place(request):
                break
            self.running.append(self.waiting.popleft())
        self.waiting.extendleft(reversed(held_back))

    def _place(self, request: Request) -> bool:
        left = min(request.sampling.max_tokens - request.sampled, self.context - len(request.tokens), _HEADROOM)
        prefix = self._prefix_for(request)
        capacity = self._capacity(len(request.tokens) + left - (len(prefix.tokens) if prefix else 0))
        start = self.kv.reserve(capacity)
        if start is None and prefix and not prefix.users:
            self._drop(prefix)
            prefix = None
            capacity = self._capacity(len(request.tokens) + left)
            start = self.kv.reserve(capacity)
        if start is None:
            assert self.running, "a lone request always fits"
            return False
        if prefix:
            prefix.users += 1
        request.piece = Piece(request.tokens, prefix, start, capacity)
        return True

    def _capacity(self, tokens: int) -> int:
        """Rows to reserve: a few sizes only, so that regions of one size lie side by side and decode in one call."""
        size = 2 * BLOCK
        while size < tokens:
            size = size * 3 // 2 if size & (size - 1) == 0 else size // 3 * 4
        return min(size, -(-self.context // BLOCK) * BLOCK)

    def _prefix_for(self, request: Request) -> Piece | None:
        """A live prefix of the request, or a new one that it shares with others that wait.

        Sharing L tokens among n requests saves reading (n - 1) L keys and values a step: the new one maximises that.
        """
        if not self.share:
            return None
        limit = len(request.tokens) - 1
        live = [p for p in self.prefixes if len(p.tokens) <= limit and common(p.tokens, request.tokens) == len(p.tokens)]
        longest = max(live, key=lambda p: len(p.tokens), default=None)
        room = self.max_batch - len(self.running)
        others = [r for r, _ in zip(self.waiting, range(room), strict=False) if r is not request]
        lengths = sorted((min(common(r.tokens, request.tokens), limit, len(r.tokens) - 1) for r in others), reverse=True)
        _, length = max(((n * length, length) for n, length in enumerate(lengths, 1)), default=(0, 0))
        if length < _SHARE_AT_LEAST or (longest and 2 * len(longest.tokens) >= length):
            return longest
        capacity = -(-length // BLOCK) * BLOCK
        start = self.kv.reserve(capacity, high=True)
        if start is None:
            return longest
        prefix = Piece(request.tokens[:length], None, start, capacity)
        self.prefixes.append(prefix)
        return prefix

    def _release(self, request: Request) -> None:
        piece = request.piece
        assert piece is not None
        request.piece = None
        self.kv.release(piece.start, piece.capacity)
        if piece.prefix:
            piece.prefix.users -= 1
            if not piece.prefix.users:
                self._drop(piece.prefix)

    def _drop(self, prefix: Piece) -> None:
        self.prefixes.remove(prefix)
        self.kv.release(prefix.start, prefix.capacity)

    # --- the step -----------------------------------------------------------------------------------------------------------------------

    def _decodes(self) -> list[Work]:
        for request in list(self.running):
            piece = request.piece
            if piece is not None and piece.started and piece.pending == 1 and piece.held == piece.capacity:
                self._grow(request, piece)
        return [Work(r.piece, 1, r) for r in self.running if r.piece and r.piece.started and r.piece.pending == 1]

    def _grow(self, request: Request, piece: Piece) -> None:
        capacity = self._capacity(piece.held + 1)
        while (start := self.kv.reserve(capacity)) is None:
            # The youngest gives way, be it this one: it starts over when there is room, and finds some of its work in the cache.
            youngest = self.running.pop()
            self._release(youngest)
            self.waiting.appendleft(youngest)
            if youngest is request:
                return
        self.kv.arena.copy(range(piece.start, piece.start + piece.held), start)
        self.kv.release(piece.start, piece.capacity)
        piece.start, piece.capacity = start, capacity

    def _chunks(self) -> list[Work]:
        work: list[Work] = []
        budget = self.step_tokens
        busy = [p for p in self._prefilling() if p.started]
        for request in self.running:
            piece = request.piece
            assert piece is not None
            if piece.prefix and piece.prefix.pending:
                job, sampler = piece.prefix, None
            else:
                job, sampler = piece, request
            if not budget or any(w.piece is job for w in work) or (job.started and job.pending == 1 and sampler):
                continue
            if not job.started:
                if not self._start(job, busy):
                    continue
                busy.append(job)
            if sampler and not request.counted:
                request.counted = True
                self.prompt_tokens += request.prompt
                self.cached_tokens += min(piece.computed, request.prompt)
                if piece.prefix:
                    self.cached_tokens -= piece.prefix.uncounted
                    piece.prefix.uncounted = 0
            count = min(job.pending, budget)
            budget -= count
            work.append(Work(job, count, sampler if count == job.pending else None))
        return work

    def _prefilling(self) -> list[Piece]:
        pieces = [r.piece for r in self.running if r.piece and not r.piece.cached]
        return [p for p in self.prefixes if p.pending] + pieces

    def _start(self, job: Piece, busy: Sequence[Piece]) -> bool:
        """Take what the cache holds of `job`. False when another piece is just computing a longer part of it: waiting is cheaper."""
        rows = self.kv.match(job.tokens, self.version)[: len(job.tokens) - 1]
        if self.kv.caching and any(common(p.tokens, job.tokens) >= len(rows) + 2 * BLOCK for p in busy if p is not job.prefix):
            return False
        job.started = True
        if len(rows) > job.offset:
            self.kv.arena.copy(rows[job.offset :], job.start)
            job.held = len(rows) - job.offset
        job.uncounted = job.pending
        return True


def common(a: list[int], b: list[int]) -> int:
    """Length of the longest common prefix."""
    at, end = 0, min(len(a), len(b))
    while at + BLOCK <= end and a[at : at + BLOCK] == b[at : at + BLOCK]:
        at += BLOCK
    while at < end and a[at] == b[at]:
        at += 1
    return at
