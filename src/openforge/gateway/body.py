"""Request bodies and JSON answers.

Invariant: a body is bounded, is a JSON object, and holds no lone surrogates (JavaScript clients that cut strings send them; no tokenizer
can encode them): these become U+FFFD.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openforge.gateway import json_text
from openforge.gateway.dialects.base import ApiError, BadRequest

MAX_BODY_BYTES = 64 << 20
"""A million-token history is some 10 MB of JSON."""


async def read_json(request: Request) -> dict[str, Any]:
    """Raises ApiError: 413 for too large a body, 400 for one that is not a JSON object."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise ApiError(413, f"the request body exceeds {MAX_BODY_BYTES >> 20} MiB", type="invalid_request_error", code="body_too_large")
    try:
        value = json_text.decode(bytes(body))
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the request body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest("the request body must be a JSON object")
    return value


def json_response(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
