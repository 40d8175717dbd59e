"""What is answered at which path.

Invariant: a request is answered in its dialect's shape, errors included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from openforge.gateway.body import error_response, json_response, read_json
from openforge.gateway.dialects import DIALECTS, Dialect, dialect_of
from openforge.gateway.dialects.base import ApiError, ReplyHead, Target
from openforge.gateway.gateway import Gateway
from openforge.gateway.identity import speaker
from openforge.gateway.metrics import CountErrors
from openforge.gateway.openapi import describe
from openforge.gateway.relay import Relay
from openforge.gateway.session import Session


def application(gateway: Gateway, more: Sequence[Route] = ()) -> Starlette:
    """`more`: routes of whoever runs the gateway. An ApiError that they raise is answered as such."""
    return Starlette(
        routes=[*_Routes(gateway).all(), *more],
        middleware=[Middleware(CountErrors, metrics=gateway.metrics)],
        exception_handlers={HTTPException: _http_error, ApiError: _api_error, Exception: _bug},
    )


class _Routes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def all(self) -> list[Route]:
        routes = [Route(path, self._root) for path in ("/", "/r/{rollout}", "/r/{rollout}/")]
        routes += [Route("/health", self._health), Route("/metrics", self._gateway.metrics.page), Route("/openapi.json", self._openapi)]
        for prefix in ("", "/r/{rollout}"):
            routes.append(Route(f"{prefix}/v1/models", self._models))
            for dialect in DIALECTS:
                routes += [Route(prefix + path, self._replies(dialect, path), methods=["POST"]) for path in dialect.reply_paths]
                routes += [Route(prefix + path, self._counts(dialect, path), methods=["POST"]) for path in dialect.count_paths]
        return routes

    def _session(self, request: Request) -> Session:
        return self._gateway.session(request.path_params.get("rollout"), request.headers, request.query_params)

    def _replies(self, dialect: Dialect, path: str) -> Any:
        async def post(request: Request) -> Response:
            try:
                session = self._session(request)
                turn = dialect.read(await read_json(request, self._gateway.limits), _target(request, path))
                source = await self._gateway.start(session, turn, dialect.name, speaker(request.headers))
            except ApiError as error:
                return error_response(dialect, error)
            head = ReplyHead(id=source.id, model=self._gateway.model_name, usage=source.usage)
            return Relay(source, dialect, turn, head, self._gateway.patience)

        return post

    def _counts(self, dialect: Dialect, path: str) -> Any:
        async def post(request: Request) -> Response:
            try:
                session = self._session(request)
                turn = dialect.read(await read_json(request, self._gateway.limits), _target(request, path))
                tokens = await self._gateway.count(session, turn, dialect.name, speaker(request.headers))
            except ApiError as error:
                return error_response(dialect, error)
            return json_response(dialect.count(tokens))

        return post

    async def _root(self, request: Request) -> Response:
        """Whether anyone is here: agents ask before their first call"""
        return json_response({"service": "openforge gateway", "description": "/openapi.json"})

    async def _openapi(self, request: Request) -> Response:
        """This description"""
        return json_response(describe(request.app.routes))

    async def _models(self, request: Request) -> Response:
        """The one model"""
        self._session(request)
        model = {"id": self._gateway.model_name, "object": "model", "created": 0, "owned_by": "openforge"}
        return json_response({"object": "list", "data": [model]})

    async def _health(self, request: Request) -> Response:
        """Whether calls can be recorded, and how many rollouts are open"""
        if self._gateway.fault is not None:
            return json_response({"status": "failed", "fault": str(self._gateway.fault)}, 503)
        return json_response({"status": "ok", "open_rollouts": self._gateway.open_rollouts})


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
