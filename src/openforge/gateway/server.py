"""The gateway: HTTP in, recorded calls out.

Invariant: a request is answered in its dialect's shape, errors included, and only for an open rollout. A log that fails is a fault of the
whole run: the gateway answers 503 from then on, and whoever runs it reads `fault` and stops.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from openforge.gateway.backend import Backend
from openforge.gateway.body import error_response, json_response, read_json
from openforge.gateway.connection import guarded
from openforge.gateway.dialects import DIALECTS, Dialect, dialect_of
from openforge.gateway.dialects.base import ApiError, ReplyHead, Target
from openforge.gateway.identity import identify, speaker
from openforge.gateway.limits import Limits
from openforge.gateway.metrics import CountErrors, GatewayMetrics
from openforge.gateway.normaliser import normalise
from openforge.gateway.openapi import describe
from openforge.gateway.recorder import Recorder, Source
from openforge.gateway.relay import Patience, Relay
from openforge.gateway.retries import Replay, request_key
from openforge.gateway.session import Session, SessionSummary
from openforge.gateway.splice import Plan
from openforge.gateway.turn import Turn
from openforge.types import Call, CallLog, FinishReason, PromptTooLong, Sampling, Speaker, UserError


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
        self._model_name = model_name
        self.patience = patience
        self.limits = limits
        self.in_flight = 0
        """Calls being made, those of rollouts that are closing included."""
        self._sessions: dict[str, Session] = {}
        self._keys: dict[str, str] = {}
        self.metrics = GatewayMetrics(open_rollouts=lambda: self.open_rollouts, in_flight=lambda: self.in_flight)
        self.recorded = 0
        """Calls that are in the log."""
        self.app = self._routes()

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

    def add_route(self, path: str, endpoint: Callable[[Request], Awaitable[Response]], method: str) -> None:
        """Answer requests that are no client's. An ApiError that `endpoint` raises is answered as such."""
        self.app.router.routes.append(Route(path, endpoint, methods=[method]))

    async def close_all(self) -> None:
        await asyncio.gather(*(self.close(rollout_id) for rollout_id in list(self._sessions)))

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

    def _check_load(self, session: Session) -> None:
        for who, calls, limit in (
            ("gateway", self.in_flight, self.limits.calls),
            ("rollout", len(session.in_flight), self.limits.calls_per_rollout),
        ):
            if calls >= limit:
                message = f"the {who} has {calls} calls in flight; try again later"
                raise ApiError(429, message, type="rate_limit_error", code="too_many_calls", headers={"retry-after": "1"})

    # --- HTTP ---------------------------------------------------------------------------------------------------------------------------

    def _routes(self) -> Starlette:
        routes = [Route(path, self._root) for path in ("/", "/r/{rollout}", "/r/{rollout}/")]
        routes += [Route("/health", self._health), Route("/metrics", self.metrics.page), Route("/openapi.json", self._openapi)]
        for prefix in ("", "/r/{rollout}"):
            routes.append(Route(f"{prefix}/v1/models", self._models))
            for dialect in DIALECTS:
                routes += [Route(prefix + path, self._replies(dialect, path), methods=["POST"]) for path in dialect.reply_paths]
                routes += [Route(prefix + path, self._counts(dialect, path), methods=["POST"]) for path in dialect.count_paths]
        return Starlette(
            routes=routes,
            middleware=[Middleware(CountErrors, metrics=self.metrics)],
            exception_handlers={HTTPException: _http_error, ApiError: _api_error, Exception: _bug},
        )

    def _session(self, request: Request) -> Session:
        rollout_id = identify(request.path_params.get("rollout"), request.headers, self._keys, request.query_params)
        session = self._sessions.get(rollout_id)
        if session is None:
            raise _not_open(rollout_id)
        return session

    def _check_open(self, session: Session) -> None:
        if self._sessions.get(session.rollout_id) is not session:
            raise _not_open(session.rollout_id)

    def _replies(self, dialect: Dialect, path: str) -> Any:
        async def post(request: Request) -> Response:
            try:
                session = self._session(request)
                turn = dialect.read(await read_json(request, self.limits), _target(request, path))
                source = await self.start(session, turn, dialect.name, speaker(request.headers))
            except ApiError as error:
                return error_response(dialect, error)
            head = ReplyHead(id=source.id, model=self._model_name, usage=source.usage)
            return Relay(source, dialect, turn, head, self.patience)

        return post

    def _counts(self, dialect: Dialect, path: str) -> Any:
        async def post(request: Request) -> Response:
            try:
                session = self._session(request)
                turn = dialect.read(await read_json(request, self.limits), _target(request, path))
                tokens = await self.count(session, turn, dialect.name, speaker(request.headers))
            except ApiError as error:
                return error_response(dialect, error)
            return json_response(dialect.count(tokens))

        return post

    async def _root(self, request: Request) -> Response:
        """Whether anyone is here: agents ask before their first call"""
        return json_response({"service": "openforge gateway", "description": "/openapi.json"})

    async def _openapi(self, request: Request) -> Response:
        """This description"""
        return json_response(describe(self.app.routes))

    async def _models(self, request: Request) -> Response:
        """The one model"""
        self._session(request)
        model = {"id": self._model_name, "object": "model", "created": 0, "owned_by": "openforge"}
        return json_response({"object": "list", "data": [model]})

    async def _health(self, request: Request) -> Response:
        """Whether calls can be recorded, and how many rollouts are open"""
        if self.fault is not None:
            return json_response({"status": "failed", "fault": str(self.fault)}, 503)
        return json_response({"status": "ok", "open_rollouts": len(self._sessions)})


def _not_open(rollout_id: str) -> ApiError:
    return ApiError(404, f"rollout {rollout_id!r} is not open", type="not_found_error", code="rollout_not_found")


def _target(request: Request, path: str) -> Target:
    return Target(path=path, params=request.path_params, query=request.query_params)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
    message = f"{error.detail}: {request.method} {request.url.path}"
    return await _api_error(request, ApiError(error.status_code, message, type=kind, headers=error.headers or {}))


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(dialect_of(request.url.path), error)


async def _bug(request: Request, error: Exception) -> Response:
    return await _api_error(request, ApiError(500, "the gateway failed; its log says why", type="server_error", code="internal_error"))


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to whoever runs the gateway."""
        yield


@asynccontextmanager
async def listen(gateway: Gateway, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve the gateway and yield its address, e.g. `http://127.0.0.1:8000`. Port 0 takes a free one. Open rollouts are closed at the end.

    Raises UserError when the address is not to be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only on sockets that say they are TCP; with it small replies wait 40 ms for an acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # A whole reply lies in the socket's buffer for as long as its client takes nothing: the kernel gives up on it, as the relay does.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(gateway.patience.stall * 1000))
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise UserError(
            f"gateway: cannot listen on {host}:{port}: {reason}; choose another port (gateway.port in a run file; 0 takes a free one)"
        ) from None
    name = f"[{host}]" if family == socket.AF_INET6 else host
    # Agents pause for minutes between calls on pooled connections; a short keep-alive would close one just as it is used again.
    config = uvicorn.Config(
        gateway.app, lifespan="off", ws="none", log_level="warning", access_log=False, timeout_keep_alive=3600, timeout_graceful_shutdown=5
    )
    config.load()
    config.http_protocol_class = guarded(config.http_protocol_class, gateway.limits)
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:  # noqa: ASYNC110 (uvicorn has no event for it)
            await asyncio.sleep(0.005)
        yield f"http://{name}:{listener.getsockname()[1]}"
    finally:
        await gateway.close_all()
        server.should_exit = True
        await serving
        listener.close()
