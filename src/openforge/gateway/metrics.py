"""What the gateway tells Prometheus at `/metrics`.

Invariant: nothing here names a rollout, a key or a text, so the page is safe to scrape; a call costs a handful of additions, a token none.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openforge.gateway.reply import usage_of
from openforge.types import Call

_FIRST_TOKEN_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
_CALL_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


class GatewayMetrics:
    """Of one gateway, in a registry of its own: a process may hold several."""

    def __init__(self, *, open_rollouts: Callable[[], int], in_flight: Callable[[], int]) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, says: str, *labels: str) -> Counter:
            return Counter(f"openforge_gateway_{name}", says, labels, registry=registry)

        def histogram(name: str, says: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"openforge_gateway_{name}", says, buckets=buckets, registry=registry)

        self._calls = counter("calls", "Calls recorded", "dialect", "finish")
        self._forks = counter("forks", "Calls that do not simply go on from an earlier one", "reason")
        self._retries = counter("client_retries", "Calls that a client's SDK marked as a retry")
        self._replays = counter("replays", "Requests answered with an earlier call's reply")
        self._prompt = counter("prompt_tokens", "Tokens of prompts")
        self._cached = counter("cached_tokens", "Of these, tokens that earlier calls held already")
        self._sampled = counter("sampled_tokens", "Tokens of replies")
        self._errors = counter("errors", "Requests answered with an error", "status")
        self._first_token = histogram("first_token_seconds", "From the start of a call to its first token", _FIRST_TOKEN_SECONDS)
        self._duration = histogram("call_seconds", "From the start of a call to its end", _CALL_SECONDS)
        Gauge("openforge_gateway_open_rollouts", "Open rollouts", registry=registry).set_function(open_rollouts)
        Gauge("openforge_gateway_calls_in_flight", "Calls in flight", registry=registry).set_function(in_flight)

    def recorded(self, call: Call) -> None:
        self._calls.labels(call.dialect, call.finish).inc()
        if call.fork is not None:
            self._forks.labels(call.fork).inc()
        if call.speaker.retry:
            self._retries.inc()
        usage = usage_of(call)
        self._prompt.inc(usage.prompt_tokens)
        self._cached.inc(usage.cached_tokens)
        self._sampled.inc(usage.sampled_tokens)
        # The wall clock may be set back between the two.
        self._duration.observe(max(0.0, call.ended_at - call.started_at))
        if call.first_token_at is not None:
            self._first_token.observe(max(0.0, call.first_token_at - call.started_at))

    def replayed(self) -> None:
        self._replays.inc()

    def refused(self, status: int) -> None:
        self._errors.labels(status).inc()

    async def page(self, request: Request) -> Response:
        """What happened so far, for Prometheus"""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


class CountErrors:
    """ASGI middleware: every answer of 400 and above is counted, whoever gives it. A stream that fails later is a call that failed."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                self._metrics.refused(message["status"])
            await send(message)

        await self._app(scope, receive, counted)
