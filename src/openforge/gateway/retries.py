"""Answers kept for the client that asks again because the first one never reached it.

Invariant: a request is answered from the record only when its one earlier attempt was complete and durable; nothing is sampled for it then.
An agent that asks the same twice on purpose gets two samples. Memory is bounded.

Who asks again is told by the SDK's own count of tries, or by a plain request for what was streamed before (Claude Code falls back so).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from openforge.gateway.recorder import Feed, Finished
from openforge.gateway.reply import Usage
from openforge.gateway.splice import Plan
from openforge.gateway.turn import Turn

KEPT = 64
"""Requests remembered a rollout: an SDK asks again within seconds."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete, durable reply."""

    id: str
    usage: Usage
    """As known before the first token."""
    finished: Finished


class Replay:
    """Shows a recorded answer as if it came just now."""

    def __init__(self, answer: Answer) -> None:
        self.id = answer.id
        self.usage = answer.usage
        self.feed = Feed()
        self.feed.put([*answer.finished.reply.events(), answer.finished])

    def abort(self) -> None:
        """Nothing is under way."""


@dataclass(slots=True)
class _Attempts:
    stream: bool
    answer: Answer | None = None
    meant: bool = False
    """Asked more than once on purpose: which answer a retry is after cannot be told."""


class Answers:
    """The latest requests of one rollout."""

    def __init__(self) -> None:
        self._attempts: OrderedDict[bytes, _Attempts] = OrderedDict()

    def find(self, key: bytes, *, stream: bool, retry: int) -> Answer | None:
        """The answer that this attempt asks for again."""
        known = self._attempts.get(key)
        return known.answer if known is not None and not known.meant and _asks_again(known, stream, retry) else None

    def begin(self, key: bytes, *, stream: bool, retry: int) -> None:
        """An attempt is being sampled."""
        known = self._attempts.get(key)
        if known is None:
            self._attempts[key] = _Attempts(stream)
            if len(self._attempts) > KEPT:
                self._attempts.popitem(last=False)
        elif not _asks_again(known, stream, retry):
            known.meant = True

    def end(self, key: bytes, answer: Answer) -> None:
        """An attempt is complete and durable."""
        if key in self._attempts:
            self._attempts[key].answer = answer


def request_key(plan: Plan, turn: Turn, dialect: str) -> bytes:
    """Stands for everything a client asks; `stream` does not count. The plan's key stands for tools and messages already."""
    fields = {name: value for name, value in turn.fields.items() if name not in ("stream", "stream_options")}
    return hashlib.blake2b(msgspec.json.encode([dialect, fields], order="sorted"), key=plan.prompt_key, digest_size=32).digest()


def _asks_again(known: _Attempts, stream: bool, retry: int) -> bool:
    return retry > 0 or (known.stream and not stream)
