"""A vLLM server as the rollout engine: token ids in, token ids out, over its `/v1/completions`.

Invariant: ids and log-probabilities are the server's own, one of each per sampled token; text is neither sent nor read. The server's
weights are what it was started with: version 0.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Self

import httpx
import msgspec

from openforge.types import (
    EngineStats,
    FinishReason,
    GenerationChunk,
    PromptTooLong,
    SampledToken,
    Sampling,
    UserError,
    VersionPolicy,
    Weights,
)

VERSION = 0
CONNECT_SECONDS = 10.0
_FINISHES = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class VllmEngine:
    """Implements `types.RolloutEngine`.

    vLLM's log-probabilities are by default those before temperature and cuts, which is the sampled distribution at temperature 1 alone;
    for other settings start it with `--logprobs-mode processed_logprobs`.
    """

    def __init__(self, client: httpx.AsyncClient, model: str, context_length: int) -> None:
        """See `connect`."""
        self.context_length = context_length
        self._client = client
        self._model = model
        self._running = 0
        self._prompt_tokens = self._cached_tokens = self._sampled_tokens = 0

    @classmethod
    async def connect(cls, url: str, api_key: str | None = None) -> Self:
        """`url`: the server's address, with or without `/v1`. Raises UserError when no vLLM server answers there."""
        client = httpx.AsyncClient(
            base_url=url.rstrip("/").removesuffix("/v1"),
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            # A request waits in the server's queue for as long as it takes.
            timeout=httpx.Timeout(CONNECT_SECONDS, read=None, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )
        try:
            answer = (await client.get("/v1/models", timeout=CONNECT_SECONDS)).raise_for_status()
            model = answer.json()["data"][0]
            return cls(client, model["id"], model["max_model_len"])
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
            await client.aclose()
            raise UserError(f"no vLLM server answers at {url}: {type(error).__name__}: {error}") from None

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, version_policy: VersionPolicy = VersionPolicy.RECOMPUTE
    ) -> AsyncIterator[GenerationChunk]:
        if len(prompt_ids) >= self.context_length:
            raise PromptTooLong
        body = {"model": self._model, "prompt": list(prompt_ids), **request_fields(sampling)}
        self._running += 1
        try:
            # Leaving the block closes the connection, on which the server aborts the request.
            async with self._client.stream("POST", "/v1/completions", json=body) as answer:
                if answer.status_code != 200:
                    raise RuntimeError(f"the vLLM server answered {answer.status_code}: {_reason(await answer.aread())}")
                self._prompt_tokens += len(prompt_ids)
                async for event in _events(answer):
                    if (chunk := self._chunk(event)) is not None:
                        yield chunk
        finally:
            self._running -= 1

    def _chunk(self, event: Mapping[str, Any]) -> GenerationChunk | None:
        if usage := event.get("usage"):
            self._cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        if not event.get("choices"):
            return None
        choice = event["choices"][0]
        tokens = _tokens(choice)
        self._sampled_tokens += len(tokens)
        word = choice.get("finish_reason")
        if word is not None and word not in _FINISHES:
            raise RuntimeError(f"the vLLM server ended the reply with {word!r}")
        return GenerationChunk(tokens=tokens, finish=_FINISHES[word] if word is not None else None)

    async def update_weights(self, version: int, weights: Weights) -> None:
        raise UserError("a vLLM server's weights cannot be replaced from here: train with the torch engine")

    async def pause(self) -> None:
        raise UserError("a vLLM server cannot be paused from here")

    async def resume(self) -> None:
        raise UserError("a vLLM server cannot be paused from here")

    def stats(self) -> EngineStats:
        """Of what was asked through this object; what the server has queued counts as running."""
        return EngineStats(
            version=VERSION,
            running=self._running,
            waiting=0,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            sampled_tokens=self._sampled_tokens,
        )

    async def close(self) -> None:
        await self._client.aclose()


def request_fields(sampling: Sampling) -> dict[str, Any]:
    """Every setting is said: what is left out, the server fills in from the model's generation_config."""
    fields: dict[str, Any] = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "logprobs": 0,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
    }
    if sampling.seed is not None:
        fields["seed"] = sampling.seed
    return fields


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if data == "[DONE]":
            return
        if data:
            event = msgspec.json.decode(data, type=dict[str, Any])
            if "error" in event:
                raise RuntimeError(f"the vLLM server failed: {_reason(data.encode())}")
            yield event


def _tokens(choice: Mapping[str, Any]) -> tuple[SampledToken, ...]:
    ids = choice.get("token_ids")
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
    if ids is None or logprobs is None:
        raise RuntimeError("the vLLM server sends no token ids: it must know `return_token_ids` (0.10.2 or newer)")
    fits = len(ids) == len(logprobs) and all(value is not None and math.isfinite(value) for value in logprobs)
    if not fits:
        raise RuntimeError(f"the vLLM server sent {len(ids)} token ids with the log-probabilities {logprobs}")
    return tuple(SampledToken(id, value, VERSION) for id, value in zip(ids, logprobs, strict=True))


def _reason(body: bytes) -> str:
    try:
        error = msgspec.json.decode(body)
        error = error.get("error", error)
        return str(error["message"] if isinstance(error, dict) else error)
    except (msgspec.DecodeError, AttributeError, KeyError):
        return body[:200].decode(errors="replace")
