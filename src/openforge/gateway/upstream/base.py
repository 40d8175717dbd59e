"""What an upstream API is asked, and what it tells.

Invariant: the client's own parameters reach the API unless the rollout has sampling of its own; a key of the gateway reaches nobody else.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from openforge.gateway.dialects.base import ApiError
from openforge.gateway.reply import End, ReplyEvent, Usage
from openforge.gateway.sampling import UNLIMITED, client_parameters
from openforge.gateway.turn import Turn
from openforge.types import FinishReason, Sampling

MAX_MESSAGE = 500
"""Characters: servers and the proxies before them answer with whole pages."""

T = TypeVar("T")


def checked(told: T) -> T:
    """What an API told, its types proven: the SDKs pass on whatever the JSON holds. Raises ValueError, also for a lone surrogate."""
    return msgspec.json.decode(msgspec.json.encode(told), type=type(told))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One call for an API."""

    turn: Turn
    dialect: str
    """The client's."""
    sampling: Sampling
    clients: bool
    """Whether `sampling` is the client's own, and not the rollout's."""

    @property
    def max_tokens(self) -> int | None:
        return self.sampling.max_tokens if self.sampling.max_tokens < UNLIMITED else None

    def parameters(self) -> dict[str, Any]:
        """Sampling parameters to send, by the names of `types.Sampling`; the API decides about those that nobody named."""
        if self.clients:
            return client_parameters(self.turn.fields)
        run, off = self.sampling, Sampling()
        cuts = {name: getattr(run, name) for name in ("top_p", "top_k", "min_p", "seed") if getattr(run, name) != getattr(off, name)}
        return {"temperature": run.temperature, **cuts}


@dataclass(slots=True)
class Told:
    """What an API has told of its reply beside the reply itself; filled in as it comes."""

    model: str | None = None
    finish: FinishReason | None = None
    reason: str | None = None
    """`finish` in the API's own word."""
    stop: str | None = None
    usage: Usage | None = None

    def record(self) -> dict[str, Any]:
        """As JSON for the call log: what was not told is left out."""
        row = {"model": self.model, "finish": self.reason, "usage": asdict(self.usage) if self.usage else None}
        return {key: value for key, value in row.items() if value is not None}

    def end(self) -> End:
        """Raises ApiError for a reply that has no end."""
        if self.finish is None:
            raise ApiError(502, "the upstream's stream ended before its reply did", type="server_error", code="upstream_error")
        return End(finish=self.finish, usage=self.usage or Usage(prompt_tokens=0), stop=self.stop)


class UpstreamApi(Protocol):
    """A client of one API. Every method raises ApiError."""

    def stream(self, ask: Ask, told: Told) -> AsyncGenerator[list[ReplyEvent], None]:
        """The reply as it comes; an empty list says that the API is at work. Closing the generator closes the API's stream."""
        ...

    async def count(self, turn: Turn) -> int: ...

    async def close(self) -> None: ...


def refusal(status: int | None, message: str) -> ApiError:
    """The client's error for an API's answer that is none; `status` is None where it did not answer.

    Its status is passed on, so that clients retry what they would have retried. What only the gateway's owner can mend (the key, the
    model's name, the account) is a 502, without the API's words, which may quote the key.
    """
    if status is None:
        return ApiError(502, f"the upstream does not answer: {message}", type="server_error", code="upstream_unreachable")
    if status in (401, 402, 403, 404):
        why = "it does not know the gateway's model or path" if status == 404 else "it refused the gateway's key or account"
        return ApiError(502, f"the upstream answered {status}: {why}", type="server_error", code="upstream_misconfigured")
    if 300 <= status < 400:
        why = f"the upstream answered {status}: it redirects; its own address must be given"
        return ApiError(502, why, type="server_error", code="upstream_misconfigured")
    if status < 400:  # an error event in a stream that had begun well
        status = 502
    message = " ".join(message.split())[:MAX_MESSAGE]
    kind = "rate_limit_error" if status == 429 else "invalid_request_error" if status < 500 else "server_error"
    return ApiError(status, f"the upstream answered {status}: {message}", type=kind, code="upstream_error")
