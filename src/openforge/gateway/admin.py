"""Opening, watching and closing rollouts over HTTP, for a gateway that no run steers.

Invariant: only the admin key opens these routes, and it opens nothing else. A rollout's id and key are unguessable, and whoever has them
reaches that rollout alone. Every rollout minted here ends in the log with one outcome, also when its time is up or the gateway stops.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol

from pydantic import Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from openforge.gateway.body import json_response, read_json
from openforge.gateway.dialects.base import ApiError, BadRequest
from openforge.gateway.gateway import Gateway
from openforge.gateway.identity import api_key
from openforge.gateway.sampling import UNLIMITED, CheckedSampling
from openforge.gateway.session import SessionSummary
from openforge.types import Outcome, Rollout, Sampling, Settings


class RolloutLog(Protocol):
    """Where the rollouts' starts and ends go; `pool.Store` is one."""

    async def start_rollout(self, rollout: Rollout) -> None: ...

    async def end_rollout(self, rollout: Rollout) -> None: ...

    def rollout(self, id: str) -> Rollout | None: ...


class RolloutRequest(Settings):
    """The body of `POST /rollouts`; everything may be left out."""

    task_id: str = Field(default="", max_length=200)
    """A name for what is attempted, kept with the rollout."""
    sampling: CheckedSampling | None = None
    """Counts instead of what the clients ask for; without `max_tokens` a reply may be as long as there is room."""
    token_budget: int | None = Field(default=None, ge=1)
    ttl: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Seconds until it is closed, if nobody has closed it before."""


@dataclass(frozen=True, slots=True)
class _Open:
    rollout: Rollout
    expiry: asyncio.TimerHandle | None


class Admin:
    def __init__(
        self,
        gateway: Gateway,
        log: RolloutLog,
        *,
        key: str,
        base_paths: Mapping[str, str],
        sampling: Sampling | None,
    ) -> None:
        """`base_paths`: a dialect's name to what its clients' base URL ends in. `sampling`: of rollouts that bring none of their own."""
        self._gateway = gateway
        self._log = log
        self._key = key
        self._base_paths = base_paths
        self._sampling = sampling
        self._open: dict[str, _Open] = {}
        self._expiring: set[asyncio.Task[Any]] = set()

    def routes(self) -> list[Route]:
        return [
            Route("/rollouts", self._mint, methods=["POST"]),
            Route("/rollouts/{id}", self._look, methods=["GET"]),
            Route("/rollouts/{id}", self._finish, methods=["DELETE"]),
        ]

    async def close(self) -> None:
        """End every rollout that is still open."""
        await asyncio.gather(*(self._end(id, Outcome.CANCELLED, "the gateway was stopped") for id in list(self._open)), *self._expiring)

    async def _mint(self, request: Request) -> Response:
        """Open a rollout"""
        self._check(request)
        asked = _read(await read_json(request, self._gateway.limits) if await request.body() else {})
        sampling = asked.sampling or self._sampling
        # The id is part of the path, where any key passes: it must be as hard to guess as the key.
        rollout = Rollout(id=secrets.token_hex(16), task_id=asked.task_id, unit=-1, index=0, split="serve", started_at=time.time())
        await self._log.start_rollout(rollout)
        access = self._gateway.open(rollout.id, sampling=sampling, token_budget=asked.token_budget)
        expiry = asyncio.get_running_loop().call_later(asked.ttl, self._expire, rollout.id) if asked.ttl is not None else None
        self._open[rollout.id] = _Open(rollout, expiry)
        address = f"{request.url.scheme}://{request.url.netloc}{access.path}"
        urls = {dialect: address + path for dialect, path in self._base_paths.items()}
        return json_response({"id": rollout.id, "api_key": access.api_key, "base_urls": urls}, 201)

    async def _look(self, request: Request) -> Response:
        """How a rollout stands"""
        self._check(request)
        id = request.path_params["id"]
        if id in self._open:
            return json_response({"id": id, "state": "open", **self._gateway.progress(id)})
        rollout = self._log.rollout(id)
        if rollout is None:
            raise _unknown(id)
        if rollout.outcome is None:
            return json_response({"id": id, "state": "closing"})
        return json_response({"id": id, "state": "closed", "outcome": rollout.outcome, "detail": rollout.detail})

    async def _finish(self, request: Request) -> Response:
        """The outcome is the caller's to tell, by the query."""
        self._check(request)
        told = request.query_params.get("outcome")
        if told is not None and told not in set(Outcome):
            raise BadRequest(f"outcome must be one of: {', '.join(Outcome)}")
        id = request.path_params["id"]
        ended = await self._end(id, Outcome(told) if told else None, "")
        if ended is None:
            raise _unknown(id)
        rollout, summary = ended
        counts = {"calls": summary.calls, "sampled_tokens": summary.sampled_tokens, "truncated": summary.truncated, "error": summary.error}
        return json_response({"id": id, "state": "closed", "outcome": rollout.outcome, **counts})

    async def _end(self, id: str, outcome: Outcome | None, detail: str) -> tuple[Rollout, SessionSummary] | None:
        """Close a rollout and record its end; None when it is not open."""
        found = self._open.pop(id, None)
        if found is None:
            return None
        if found.expiry is not None:
            found.expiry.cancel()
        summary = await self._gateway.close(id)
        outcome = outcome or (Outcome.TRUNCATED if summary.truncated else Outcome.FINISHED)
        ended = replace(found.rollout, outcome=outcome, detail=detail, ended_at=time.time())
        await self._log.end_rollout(ended)
        return ended, summary

    def _expire(self, id: str) -> None:
        task = asyncio.create_task(self._end(id, Outcome.TIMEOUT, "its time to live was over"))
        self._expiring.add(task)
        task.add_done_callback(self._expiring.discard)

    def _check(self, request: Request) -> None:
        if not secrets.compare_digest(api_key(request.headers, request.query_params).encode(), self._key.encode()):
            raise ApiError(401, "not the admin key", type="authentication_error", code="invalid_admin_key")


def _read(body: dict[str, Any]) -> RolloutRequest:
    if isinstance(sampling := body.get("sampling"), dict):
        body = {**body, "sampling": {"max_tokens": UNLIMITED, **sampling}}
    try:
        return RolloutRequest.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise BadRequest(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _unknown(id: str) -> ApiError:
    return ApiError(404, f"no rollout {id!r} is open or on record", type="not_found_error", code="rollout_not_found")
