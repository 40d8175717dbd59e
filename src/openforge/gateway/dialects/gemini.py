"""Google's generateContent (ai.google.dev/api/generate-content), streamed and plain, and countTokens.

Invariant: what a field means is either obeyed, or recorded and ignored, or refused with a 400 (several candidates, images, Google's own
tools, cached content); never half done. Every field is taken in camelCase and in snake_case, as Google takes it.

The protocol has no place for half a call: a call is streamed once its arguments are complete, and one whose arguments never become a JSON
object is left out, with MALFORMED_FUNCTION_CALL as the reason (or MAX_TOKENS, if the limit cut it). Reasoning is shown, as thought parts,
to clients that ask for it with `thinkingConfig.includeThoughts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from openforge.gateway.dialects import sse
from openforge.gateway.dialects.base import ApiError, BadRequest, ReplyHead, Target
from openforge.gateway.dialects.fields import camel_case, read_array, read_limit, read_object, read_string, read_strings
from openforge.gateway.dialects.gemini_schema import json_schema
from openforge.gateway.json_text import compact_object
from openforge.gateway.reply import End, ReasoningDelta, Reply, ReplyEvent, TextDelta, ToolCallDelta, Usage
from openforge.gateway.turn import Message, Tool, ToolCall, Turn
from openforge.types import FinishReason

GENERATE, STREAM, COUNT = (
    tuple(f"/{version}/models/{{model:path}}:{method}" for version in ("v1beta", "v1"))
    for method in ("generateContent", "streamGenerateContent", "countTokens")
)
STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
"""HTTP status to google.rpc.Code."""
DATA = {
    "inlineData", "fileData", "executableCode", "codeExecutionResult", "toolCall", "toolResponse", "functionCall", "functionResponse",
}  # fmt: skip
"""The kinds of part beside text."""


class Gemini:
    name = "gemini"
    reply_paths: tuple[str, ...] = (*GENERATE, *STREAM)
    count_paths: tuple[str, ...] = COUNT

    def read(self, body: dict[str, Any], target: Target) -> Turn:
        body = camel_case(body)
        if target.path in COUNT and (request := body.get("generateContentRequest")) is not None:
            body = camel_case(read_object(request, "generateContentRequest"))
        stream = target.path in STREAM
        if stream and target.query.get("alt") != "sse":
            raise BadRequest("streamGenerateContent is answered as server-sent events only: add '?alt=sse'")
        if body.get("cachedContent"):
            raise BadRequest("'cachedContent' is not supported: send the whole contents")
        config = camel_case(read_object(body.get("generationConfig") or {}, "generationConfig"))
        if config.get("candidateCount") not in (None, 1):
            raise BadRequest("'candidateCount' must be 1: every reply is one recorded sample; send several requests instead")
        return Turn(
            messages=(*_system(body.get("systemInstruction")), *_read_contents(body.get("contents"))),
            tools=tuple(_read_tools(body.get("tools"))),
            model=target.params["model"],
            stream=stream,
            max_tokens=read_limit(config, ("maxOutputTokens",)),
            stop=read_strings(config.get("stopSequences"), "'stopSequences'"),
            fields={key: value for key, value in body.items() if key not in ("contents", "systemInstruction", "tools")},
        )

    def whole(self, head: ReplyHead, turn: Turn, reply: Reply, end: End) -> dict[str, Any]:
        parts = PartWriter(thoughts=_wants_thoughts(turn))
        written = [part for event in reply.events() for part in parts.feed(event)]
        return _last(head, [*written, *parts.finish()], end, malformed=parts.malformed)

    def writer(self, head: ReplyHead, turn: Turn) -> GeminiWriter:
        return GeminiWriter(head, PartWriter(thoughts=_wants_thoughts(turn)))

    def count(self, tokens: int) -> dict[str, Any]:
        return {"totalTokens": tokens}

    def error(self, error: ApiError) -> dict[str, Any]:
        row: dict[str, Any] = {
            "code": error.status,
            "message": error.message,
            "status": STATUSES.get(error.status, "INVALID_ARGUMENT" if error.status < 500 else "INTERNAL"),
        }
        if error.code is not None:
            row["details"] = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": error.code.upper(), "domain": "openforge"}]
        return {"error": row}


class GeminiWriter:
    """Server-sent events of one streamed reply."""

    def __init__(self, head: ReplyHead, parts: PartWriter) -> None:
        self._head = head
        self._parts = parts

    def open(self) -> bytes:
        return b""

    def delta(self, event: ReplyEvent) -> bytes:
        parts = self._parts.feed(event)
        return sse.event(_response(self._head, {"content": _content(parts), "index": 0})) if parts else b""

    def ping(self) -> bytes:
        # Google's SDKs read a comment as broken JSON; an empty line is an end of no event to every parser.
        return b"\n"

    def close(self, end: End) -> bytes:
        parts = self._parts.finish()
        return sse.event(_last(self._head, parts, end, malformed=self._parts.malformed))

    def fail(self, error: ApiError) -> bytes:
        # As Google sends it: bare JSON, on which its SDKs raise. Behind an empty line the JavaScript one would pass over it.
        return msgspec.json.encode(Gemini().error(error)) + b"\n"


class PartWriter:
    """Turns reply events into parts; a call's events are held until the call is complete."""

    def __init__(self, *, thoughts: bool) -> None:
        self.malformed = False
        """Whether a call was left out because its arguments are no JSON object."""
        self._thoughts = thoughts
        self._call: tuple[str, str, list[str]] | None = None

    def feed(self, event: ReplyEvent) -> list[dict[str, Any]]:
        match event:
            case TextDelta(text):
                return [*self.finish(), {"text": text}]
            case ReasoningDelta(text):
                return [*self.finish(), {"text": text, "thought": True}] if self._thoughts else self.finish()
            case ToolCallDelta(_, str(id), str(name), arguments):
                parts = self.finish()
                self._call = (id, name, [arguments])
                return parts
            case ToolCallDelta(_, _, _, arguments):
                assert self._call is not None
                self._call[2].append(arguments)
        return []

    def finish(self) -> list[dict[str, Any]]:
        """The call that was held, if one was."""
        if self._call is None:
            return []
        (id, name, pieces), self._call = self._call, None
        arguments = compact_object("".join(pieces))
        if arguments is None:
            self.malformed = True
            return []
        return [{"functionCall": {"id": id, "name": name, "args": arguments}}]


# --- requests -----------------------------------------------------------------------------------------------------------------------------


def _system(value: object) -> list[Message]:
    if value is None:
        return []
    content = {"parts": [{"text": value}]} if isinstance(value, str) else read_object(value, "systemInstruction")
    texts = [_text(part, where) for part, where in _parts(content, "systemInstruction")]
    return [Message(role="system", content="\n".join(texts))]


def _read_contents(value: object) -> list[Message]:
    rows = _many(value)
    if not rows:
        raise BadRequest("'contents' must be a non-empty array")
    messages: list[Message] = []
    for i, row in enumerate(rows):
        where = f"contents[{i}]"
        content = read_object(row, where)
        role = content.get("role") or "user"
        if role == "model":
            # A client that kept a stream's chunks as they came echoes one reply as several contents.
            before = messages.pop() if messages and messages[-1].role == "assistant" else Message(role="assistant")
            messages.append(_model(content, where, before))
        elif role in ("user", "function"):
            messages += _user(content, where)
        else:
            raise BadRequest(f"{where}.role: {role!r} is not one of: user, model")
    return messages


def _model(content: dict[str, Any], where: str, before: Message) -> Message:
    text, reasoning = [before.content], [before.reasoning]
    calls = list(before.tool_calls)
    extra = list(before.extra.get("parts", ()))
    for part, at in _parts(content, where):
        if (call := part.get("functionCall")) is not None:
            calls.append(_function_call(camel_case(read_object(call, f"{at}.functionCall")), f"{at}.functionCall"))
        else:
            (reasoning if part.get("thought") else text).append(_text(part, at))
        extra += _unknown(part)
    return Message(
        role="assistant",
        content="".join(text),
        reasoning="".join(reasoning),
        tool_calls=tuple(calls),
        extra={"parts": extra} if extra else {},
    )


def _user(content: dict[str, Any], where: str) -> Iterator[Message]:
    """A message for each function response, and one for each run of text between them."""
    texts: list[str] = []
    extra: list[dict[str, Any]] = []
    for part, at in _parts(content, where):
        if (response := part.get("functionResponse")) is None:
            texts.append(_text(part, at))
            extra += _unknown(part)
            continue
        if texts:
            yield _user_text(texts, extra)
            texts, extra = [], []
        yield _function_response(camel_case(read_object(response, f"{at}.functionResponse")), f"{at}.functionResponse")
    if texts or not content.get("parts"):
        yield _user_text(texts, extra)


def _user_text(texts: list[str], extra: list[dict[str, Any]]) -> Message:
    return Message(role="user", content="\n".join(texts), extra={"parts": extra} if extra else {})


def _parts(content: dict[str, Any], where: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Each part, and where it stands."""
    for i, part in enumerate(_many(content.get("parts"))):
        at = f"{where}.parts[{i}]"
        yield camel_case(read_object(part, at)), at


def _text(part: dict[str, Any], where: str) -> str:
    if other := DATA & part.keys():
        raise BadRequest(f"{where}: {', '.join(sorted(other))} is not supported here; only text is")
    return read_string(part, "text", where)


def _unknown(part: dict[str, Any]) -> list[dict[str, Any]]:
    """What of a part is recorded and not rendered: thought signatures, metadata."""
    rest = {key: value for key, value in part.items() if key not in ("text", "thought", "functionCall") and value is not None}
    return [rest] if rest else []


def _function_call(call: dict[str, Any], where: str) -> ToolCall:
    args = read_object(call.get("args") or {}, f"{where}.args")
    return ToolCall(read_string(call, "id", where), read_string(call, "name", where), msgspec.json.encode(args).decode())


def _function_response(row: dict[str, Any], where: str) -> Message:
    if row.get("parts"):
        raise BadRequest(f"{where}.parts is not supported; only 'response' is")
    response = read_object(row.get("response") or {}, f"{where}.response")
    # By Google's convention a response with `output` alone is that output.
    value = response["output"] if response.keys() == {"output"} else response
    return Message(
        role="tool",
        content=value if isinstance(value, str) else msgspec.json.encode(value).decode(),
        tool_call_id=read_string(row, "id", where) or None,
        name=read_string(row, "name", where) or None,
    )


def _read_tools(value: object) -> Iterator[Tool]:
    for i, row in enumerate(_many(value)):
        tool = camel_case(read_object(row, f"tools[{i}]"))
        for key, declarations in tool.items():
            where = f"tools[{i}].{key}"
            if declarations is None:
                continue
            if key != "functionDeclarations":
                raise BadRequest(f"{where} is not supported: Google's own tools do not run here; declare functions")
            for j, declaration in enumerate(read_array(declarations, where)):
                yield _declaration(camel_case(read_object(declaration, f"{where}[{j}]")), f"{where}[{j}]")


def _declaration(row: dict[str, Any], where: str) -> Tool:
    name = read_string(row, "name", where)
    if not name:
        raise BadRequest(f"{where}.name is missing")
    if row.get("parametersJsonSchema") is not None:
        parameters = read_object(row["parametersJsonSchema"], f"{where}.parametersJsonSchema")
    else:
        parameters = json_schema(read_object(row.get("parameters") or {}, f"{where}.parameters"))
    return Tool(name, read_string(row, "description", where), parameters)


def _many(value: object) -> list[Any]:
    """Google takes a single element where it expects an array."""
    return [] if value is None else value if isinstance(value, list) else [value]


def _wants_thoughts(turn: Turn) -> bool:
    config = camel_case(turn.fields.get("generationConfig") or {})
    thinking = config.get("thinkingConfig")
    return isinstance(thinking, dict) and bool(camel_case(thinking).get("includeThoughts"))


# --- replies ------------------------------------------------------------------------------------------------------------------------------


def _last(head: ReplyHead, parts: list[dict[str, Any]], end: End, *, malformed: bool) -> dict[str, Any]:
    """A plain reply, or a stream's last event. Clients take a content without parts for a broken one: hence the empty text."""
    reason = "MAX_TOKENS" if end.finish == FinishReason.LENGTH else "MALFORMED_FUNCTION_CALL" if malformed else "STOP"
    candidate = {"content": _content(parts or [{"text": ""}]), "finishReason": reason, "index": 0}
    return {**_response(head, candidate), "usageMetadata": _usage(end.usage)}


def _response(head: ReplyHead, candidate: dict[str, Any]) -> dict[str, Any]:
    return {"candidates": [candidate], "modelVersion": head.model, "responseId": head.id}


def _content(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {"parts": list(parts), "role": "model"}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "promptTokenCount": usage.prompt_tokens,
        "cachedContentTokenCount": usage.cached_tokens,
        "candidatesTokenCount": usage.sampled_tokens - usage.reasoning_tokens,
        "thoughtsTokenCount": usage.reasoning_tokens,
        "totalTokenCount": usage.prompt_tokens + usage.sampled_tokens,
    }
