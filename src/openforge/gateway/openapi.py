"""The gateway described in OpenAPI 3.1, for people and tools that look before they call.

Invariant: the description is made from the routes that are served, so it can neither forget one nor promise one. A request's schema names
what is needed and obeyed; everything else a client sends is recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from starlette.routing import BaseRoute, Route

from openforge import __version__
from openforge.gateway.dialects import DIALECTS

TEXT = {"type": "string"}
LIMIT = {"type": "integer", "minimum": 1}
STOPS = {"type": "array", "items": TEXT}


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def _array(items: dict[str, Any], *, least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least}


CHAT_MESSAGE = _object(("role", "content"), role={"enum": ["system", "developer", "user", "assistant", "tool"]}, content=TEXT)
CLAUDE_MESSAGE = _object(("role", "content"), role={"enum": ["user", "assistant"]}, content=TEXT)
CONTENT = _object(("parts",), role={"enum": ["user", "model"]}, parts=_array(_object(("text",), text=TEXT)))
FUNCTION = _object(("name",), name={"type": "string", "minLength": 1}, description=TEXT, parameters={"type": "object"})
REQUESTS = {
    "chat": _object(
        ("messages",),
        messages=_array(CHAT_MESSAGE, least=1),
        tools=_array(_object(("function",), type={"const": "function"}, function=FUNCTION)),
        stream={"type": "boolean"},
        max_tokens=LIMIT,
        stop=STOPS,
    ),
    "responses": _object(("input",), input=TEXT, instructions=TEXT, stream={"type": "boolean"}, max_output_tokens=LIMIT),
    "messages": _object(
        ("messages", "max_tokens"),
        messages=_array(CLAUDE_MESSAGE, least=1),
        system=TEXT,
        stream={"type": "boolean"},
        max_tokens=LIMIT,
        stop_sequences=STOPS,
    ),
    "gemini": _object(
        ("contents",),
        contents=_array(CONTENT, least=1),
        systemInstruction=CONTENT,
        tools=_array(_object(functionDeclarations=_array(FUNCTION))),
        generationConfig=_object(maxOutputTokens=LIMIT, stopSequences=STOPS),
    ),
}
"""What each dialect's requests are, by its name."""
SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "x-goog-api-key": {"type": "apiKey", "in": "header", "name": "x-goog-api-key"},
    "key": {"type": "apiKey", "in": "query", "name": "key"},
}


def describe(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for route in routes:
        assert isinstance(route, Route)
        assert route.methods
        path = re.sub(r":\w+}", "}", route.path)
        operations: dict[str, Any] = {method.lower(): _operation(route) for method in sorted(route.methods - {"HEAD"})}
        names = re.findall(r"{(\w+)}", path)
        if names:
            operations["parameters"] = [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in names]
        paths.setdefault(path, {}).update(operations)
    return {
        "openapi": "3.1.0",
        "info": {"title": "OpenForge gateway", "version": __version__},
        "paths": paths,
        "components": {"securitySchemes": SECURITY, "schemas": {"Error": _object(("error",), error={"type": "object"})}},
        "security": [{}, *({name: []} for name in SECURITY)],
    }


def _operation(route: Route) -> dict[str, Any]:
    for dialect in DIALECTS:
        if route.path.endswith(tuple(dialect.reply_paths)):
            answer = {**_json({"type": "object"}), "text/event-stream": {}}
            return _post(f"A call in the dialect {dialect.name!r}", dialect.name, answer)
        if route.path.endswith(tuple(dialect.count_paths)):
            return _post("The length of such a call's prompt in tokens", dialect.name, _json({"type": "object"}))
    summary = (route.endpoint.__doc__ or "").strip()
    return {"summary": summary, "responses": {"200": {"description": "Done"}, "default": {"description": "Why not"}}}


def _post(summary: str, dialect: str, answer: dict[str, Any]) -> dict[str, Any]:
    error = {"description": "Why not, in the dialect's shape", "content": _json({"$ref": "#/components/schemas/Error"})}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": _json(REQUESTS[dialect])},
        "responses": {"200": {"description": "Done", "content": answer}, "default": error},
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
