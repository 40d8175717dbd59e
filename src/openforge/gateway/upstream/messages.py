"""An upstream that speaks Anthropic's Messages API.

Invariant: a thinking block goes back with the signature the API gave it, or not at all: it refuses any other.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable
from itertools import groupby
from typing import Any

import anthropic
import httpx2

from openforge.gateway.formats.values import read_arguments
from openforge.gateway.reply import ReasoningDelta, ReplyEvent, TextDelta, ToolCallDelta, Usage
from openforge.gateway.turn import Message, Tool, Turn
from openforge.gateway.upstream.base import Ask, Told, refusal
from openforge.types import FinishReason

DEFAULT_MAX_TOKENS = 8192
"""The API wants a limit; this is for clients of other dialects that name none."""
MAX_THOUGHTS = 16_384

_PASSED = ("tool_choice", "thinking", "output_config", "service_tier")
"""Fields of a Messages client that go through as they are. Others may need a beta header, which does not come through."""
_NAMES = ("temperature", "top_p", "top_k")
"""The sampling parameters that the API has."""
_LENGTH = ("max_tokens", "model_context_window_exceeded")


class MessagesApi:
    """Implements `UpstreamApi`."""

    def __init__(self, url: str, api_key: str, model: str) -> None:
        # Followed to another host, a redirect would take the key's header there.
        http = anthropic.DefaultAsyncHttpxClient(follow_redirects=False)
        self._client = anthropic.AsyncAnthropic(base_url=url, api_key=api_key, max_retries=0, http_client=http)
        self._model = model
        self._thoughts: OrderedDict[bytes, list[dict[str, Any]]] = OrderedDict()
        """A reply's signed thinking blocks by the hash of their text: no other dialect carries signatures."""

    async def stream(self, ask: Ask, told: Told) -> AsyncGenerator[list[ReplyEvent], None]:
        reply = MessageEvents(told)
        try:
            stream = await self._client.messages.create(
                model=self._model,
                max_tokens=ask.max_tokens or DEFAULT_MAX_TOKENS,
                messages=[],
                stream=True,
                extra_body={**self._prompt(ask.turn), **request_fields(ask)},
            )
            async with stream:
                async for event in stream:
                    yield reply.add(event)
        except anthropic.APIStatusError as error:
            raise refusal(error.status_code, error.api_message or error.message) from None
        except (anthropic.APIConnectionError, httpx2.HTTPError) as error:
            raise refusal(None, type(error.__cause__ or error).__name__) from None
        if reply.thoughts:
            self._thoughts[_digest("".join(block["thinking"] for block in reply.thoughts))] = reply.thoughts
            if len(self._thoughts) > MAX_THOUGHTS:
                self._thoughts.popitem(last=False)

    async def count(self, turn: Turn) -> int:
        try:
            counted = await self._client.messages.count_tokens(model=self._model, messages=[], extra_body=self._prompt(turn))
        except anthropic.APIStatusError as error:
            raise refusal(error.status_code, error.api_message or error.message) from None
        except anthropic.APIConnectionError as error:
            raise refusal(None, type(error.__cause__ or error).__name__) from None
        return counted.input_tokens

    async def close(self) -> None:
        await self._client.close()

    def _prompt(self, turn: Turn) -> dict[str, Any]:
        """System text, messages and tools."""
        lead = next((at for at, message in enumerate(turn.messages) if message.role != "system"), len(turn.messages))
        prompt: dict[str, Any] = {"messages": self._messages(turn.messages[lead:])}
        if system := [_text(message.content) for message in turn.messages[:lead] if message.content]:
            prompt["system"] = system
        if turn.tools:
            prompt["tools"] = [messages_tool(tool) for tool in turn.tools]
        return prompt

    def _messages(self, messages: Iterable[Message]) -> list[dict[str, Any]]:
        """The API alternates: a run of messages that are not the assistant's is one of the user's, its tool results first."""
        found = []
        for assistant, run in groupby(messages, lambda message: message.role == "assistant"):
            blocks = [block for message in run for block in (self._reply(message) if assistant else _input(message))]
            if not assistant:
                blocks.sort(key=lambda block: block["type"] != "tool_result")
            if blocks:
                found.append({"role": "assistant" if assistant else "user", "content": blocks})
        return found

    def _reply(self, message: Message) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        if message.reasoning:
            blocks += self._thoughts.get(_digest(message.reasoning), [])
        if message.content.strip():
            blocks.append(_text(message.content))
        for call in message.tool_calls:
            blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _object(call.arguments)})
        return blocks


class MessageEvents:
    """Turns the API's events into a reply's, and keeps what it tells beside."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._calls = 0
        self._arguments = False
        """Whether the open block is a tool call whose arguments have begun."""
        self._thought: list[str] = []
        self.thoughts: list[dict[str, Any]] = []
        """Thinking blocks with their signatures."""

    def add(self, event: Any) -> list[ReplyEvent]:
        """`event`: one of the SDK's raw stream events; kinds that are not known here are passed over, as the API asks its clients to."""
        match event.type:
            case "message_start":
                self._told.model = event.message.model
                self._told.usage = _usage(event.message.usage)
            case "content_block_start":
                return self._start(event.content_block)
            case "content_block_delta":
                return self._delta(event.delta)
            case "content_block_stop":
                if self._calls and not self._arguments:
                    self._arguments = True
                    return [ToolCallDelta(self._calls - 1, None, None, "{}")]
            case "message_delta":
                self._finish(event)
        return []

    def _start(self, block: Any) -> list[ReplyEvent]:
        match block.type:
            case "text" if block.text:
                return [TextDelta(block.text)]
            case "thinking":
                self._thought = []
                return self._think(block.thinking)
            case "tool_use":
                self._calls += 1
                # Mostly the arguments follow in pieces, and `input` is empty here.
                self._arguments = bool(block.input)
                return [ToolCallDelta(self._calls - 1, block.id, block.name, json.dumps(block.input) if block.input else "")]
        return []

    def _delta(self, delta: Any) -> list[ReplyEvent]:
        match delta.type:
            case "text_delta" if delta.text:
                return [TextDelta(delta.text)]
            case "thinking_delta":
                return self._think(delta.thinking)
            case "input_json_delta" if delta.partial_json:
                self._arguments = True
                return [ToolCallDelta(self._calls - 1, None, None, delta.partial_json)]
            case "signature_delta":
                self.thoughts.append({"type": "thinking", "thinking": "".join(self._thought), "signature": delta.signature})
        return []

    def _think(self, text: str) -> list[ReplyEvent]:
        self._thought.append(text)
        return [ReasoningDelta(text)] if text else []

    def _finish(self, event: Any) -> None:
        told, reason = self._told, event.delta.stop_reason
        if reason is not None:
            told.reason = reason
            told.finish = FinishReason.LENGTH if reason in _LENGTH else FinishReason.STOP
            told.stop = event.delta.stop_sequence
        before = told.usage or Usage(prompt_tokens=0)
        prompt = _usage(event.usage) if event.usage.input_tokens else before
        told.usage = Usage(
            prompt_tokens=prompt.prompt_tokens, cached_tokens=prompt.cached_tokens, sampled_tokens=event.usage.output_tokens or 0
        )


def request_fields(ask: Ask) -> dict[str, Any]:
    """The request's body beside model, prompt and streaming."""
    fields = {name: ask.turn.fields[name] for name in _PASSED if name in ask.turn.fields} if ask.dialect == "messages" else {}
    fields |= {name: value for name, value in ask.parameters().items() if name in _NAMES}
    if stop := [*ask.sampling.stop]:
        fields["stop_sequences"] = stop
    return fields


def messages_tool(tool: Tool) -> dict[str, Any]:
    row: dict[str, Any] = {"name": tool.name, "input_schema": tool.parameters or {"type": "object", "properties": {}}}
    return {**row, "description": tool.description} if tool.description else row


def _input(message: Message) -> list[dict[str, Any]]:
    """What is not the assistant's: tool results, and text, also that of system messages in the middle, which keep their place."""
    if message.role == "tool":
        return [{"type": "tool_result", "tool_use_id": message.tool_call_id or "", "content": message.content}]
    return [_text(message.content)] if message.content.strip() else []


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _object(arguments: str) -> dict[str, Any]:
    """The API takes an object alone; arguments that are none are shown to it as text."""
    value = read_arguments(arguments or "{}")
    return {"arguments": arguments} if value is None else value


def _usage(usage: Any) -> Usage:
    cached = usage.cache_read_input_tokens or 0
    new = (usage.input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return Usage(prompt_tokens=new + cached, cached_tokens=cached, sampled_tokens=usage.output_tokens or 0)


def _digest(thought: str) -> bytes:
    return hashlib.blake2b(thought.encode("utf-8", "replace"), digest_size=16).digest()
