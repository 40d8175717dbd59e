"""An upstream that speaks OpenAI Chat Completions.

Invariant: tool calls are numbered as they appear, whatever indices a server gives them, and each has an id, a name and arguments.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import openai
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall

from openforge.gateway.dialects.base import ApiError
from openforge.gateway.dialects.chat_request import write_message, write_tool
from openforge.gateway.reply import ReasoningDelta, ReplyEvent, TextDelta, ToolCallDelta, Usage
from openforge.gateway.turn import Turn, new_tool_call_id
from openforge.gateway.upstream.base import Ask, Told, refusal
from openforge.types import FinishReason

_SENT = {"model", "messages", "tools", "stream", "stream_options", "stop", "max_tokens", "max_completion_tokens", "n"}
"""Fields of a request that are sent from the canonical turn."""
_SAMPLING = {"temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias"}


class ChatApi:
    """Implements `UpstreamApi`."""

    def __init__(self, url: str, api_key: str, model: str) -> None:
        # Retries are the client's: it sees the API's own status, and every attempt is a recorded call.
        http = openai.DefaultAsyncHttpxClient(follow_redirects=False)
        self._client = openai.AsyncOpenAI(base_url=url, api_key=api_key, max_retries=0, http_client=http)
        self._model = model

    async def stream(self, ask: Ask, told: Told) -> AsyncGenerator[list[ReplyEvent], None]:
        calls = ToolCalls()
        messages: list[Any] = [write_message(message, extra=ask.dialect == "chat") for message in ask.turn.messages]
        try:
            stream = await self._client.chat.completions.create(
                model=self._model,
                messages=messages,
                stream=True,
                stream_options={"include_usage": True},
                extra_body=request_fields(ask),
            )
            async with stream:
                async for chunk in stream:
                    yield _events(chunk, calls, told)
        except openai.APIStatusError as error:
            raise refusal(error.status_code, error.message) from None
        except openai.APIConnectionError as error:
            raise refusal(None, type(error.__cause__ or error).__name__) from None
        except openai.APIError as error:
            raise ApiError(502, f"the upstream failed: {error.message}", type="server_error", code="upstream_error") from None
        yield calls.finish()

    async def count(self, turn: Turn) -> int:
        raise ApiError(404, "the upstream's dialect has no way to count a prompt's tokens", type="not_found_error", code="no_count")

    async def close(self) -> None:
        await self._client.close()


def request_fields(ask: Ask) -> dict[str, Any]:
    """The request's body beside model, messages and streaming. A chat client's own fields go through as they are."""
    turn, fields = ask.turn, {}
    if ask.dialect == "chat":
        left_out = _SENT if ask.clients else _SENT | _SAMPLING
        fields = {key: value for key, value in turn.fields.items() if key not in left_out}
    fields |= ask.parameters()
    if turn.tools:
        fields["tools"] = [write_tool(tool) for tool in turn.tools]
    if stop := [*ask.sampling.stop]:
        fields["stop"] = stop
    if ask.max_tokens is not None:
        # Newer models of OpenAI refuse `max_tokens`, some older servers know nothing else: the client knows which it is made for.
        old = ask.dialect == "chat" and turn.fields.get("max_tokens") is not None
        fields["max_tokens" if old else "max_completion_tokens"] = ask.max_tokens
    return fields


class ToolCalls:
    """Numbers the pieces of a reply's tool calls.

    Servers count indices from 0, from 1 or not at all, and some give all calls the same: an index or an id that is new starts a call.
    """

    def __init__(self) -> None:
        self._ids: list[str | None] = []
        """As the server named them."""
        self._places: dict[int, int] = {}
        self._arguments: list[bool] = []

    def add(self, piece: ChoiceDeltaToolCall) -> list[ReplyEvent]:
        function = piece.function
        arguments = (function and function.arguments) or ""
        at = self._find(piece)
        if at is not None:
            self._ids[at] = self._ids[at] or piece.id
            self._arguments[at] |= bool(arguments)
            return [ToolCallDelta(at, None, None, arguments)] if arguments else []
        at = len(self._ids)
        self._ids.append(piece.id)
        self._arguments.append(bool(arguments))
        if piece.index is not None:
            self._places[piece.index] = at
        return [ToolCallDelta(at, piece.id or new_tool_call_id(), (function and function.name) or "", arguments)]

    def finish(self) -> list[ReplyEvent]:
        """A call without arguments has none to be parsed: `{}` says so."""
        return [ToolCallDelta(at, None, None, "{}") for at, some in enumerate(self._arguments) if not some]

    def _find(self, piece: ChoiceDeltaToolCall) -> int | None:
        last = len(self._ids) - 1 if self._ids else None
        at = last if piece.index is None else self._places.get(piece.index)
        if at is not None and piece.id and self._ids[at] not in (None, piece.id):
            return None
        return at


def _events(chunk: ChatCompletionChunk, calls: ToolCalls, told: Told) -> list[ReplyEvent]:
    told.model = chunk.model or told.model
    if chunk.usage is not None:
        prompt, completion = chunk.usage.prompt_tokens_details, chunk.usage.completion_tokens_details
        told.usage = Usage(
            prompt_tokens=chunk.usage.prompt_tokens or 0,
            cached_tokens=(prompt and prompt.cached_tokens) or 0,
            sampled_tokens=chunk.usage.completion_tokens or 0,
            reasoning_tokens=(completion and completion.reasoning_tokens) or 0,
        )
    if not chunk.choices:
        return []
    choice = chunk.choices[0]
    if choice.finish_reason is not None:
        told.reason = choice.finish_reason
        told.finish = FinishReason.LENGTH if choice.finish_reason == "length" else FinishReason.STOP
    return _delta(choice.delta, calls) if choice.delta else []


def _delta(delta: ChoiceDelta, calls: ToolCalls) -> list[ReplyEvent]:
    events: list[ReplyEvent] = []
    # No field of OpenAI's own: servers write one of two names.
    reasoning = getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None)
    if isinstance(reasoning, str):
        events.append(ReasoningDelta(reasoning))
    if text := delta.content or delta.refusal:
        events.append(TextDelta(text))
    pieces: Sequence[ChoiceDeltaToolCall] = delta.tool_calls or ()
    for piece in pieces:
        events += calls.add(piece)
    return events
