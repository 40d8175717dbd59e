"""Request bodies and JSON answers.

Invariant: a body is bounded in size (decompressed too), in time and in depth, and is a JSON object, whatever its content type says.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import zstandard
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from openforge.gateway import json_text
from openforge.gateway.dialects.base import ApiError, BadRequest, Dialect
from openforge.gateway.limits import Limits

DECODERS: dict[str, Callable[[io.BytesIO], Any]] = {
    "gzip": lambda packed: gzip.GzipFile(fileobj=packed),
    "zstd": lambda packed: zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True),
}
"""Content encodings: each a stream that unpacks no more than is read from it."""


async def read_json(request: Request, limits: Limits) -> dict[str, Any]:
    """Raises ApiError: 408 for a body too slow, 413 for one too large, 415 for an unknown encoding, 400 for one that is no JSON object."""
    try:
        async with asyncio.timeout(limits.body_seconds):
            body = await _read(request, limits)
    except TimeoutError:
        message = f"the request body took longer than {limits.body_seconds:g} s"
        raise ApiError(408, message, type="invalid_request_error", code="body_too_slow", headers={"connection": "close"}) from None
    except ClientDisconnect:
        raise BadRequest("the client went away within the request body") from None
    try:
        value = json_text.decode(_unpack(body, request.headers.get("content-encoding", ""), limits))
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, ApiError) else BadRequest(f"the request body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest("the request body must be a JSON object")
    if json_text.depth(value) > limits.json_depth:
        raise BadRequest(f"the request body nests deeper than {limits.json_depth} levels")
    return value


async def _read(request: Request, limits: Limits) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limits.body_bytes:
            raise _too_large(limits)
    return bytes(body)


def _unpack(body: bytes, encoding: str, limits: Limits) -> bytes:
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in DECODERS:
        message = f"content encoding {encoding!r} is not one of: {', '.join(DECODERS)}"
        raise ApiError(415, message, type="invalid_request_error", code="unsupported_encoding")
    try:
        unpacked: bytes = DECODERS[name](io.BytesIO(body)).read(limits.body_bytes + 1)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise BadRequest(f"the request body is not {name}: {error}") from None
    if len(unpacked) > limits.body_bytes:
        raise _too_large(limits)
    return unpacked


def _too_large(limits: Limits) -> ApiError:
    return ApiError(413, f"the request body exceeds {limits.body_bytes:,} bytes", type="invalid_request_error", code="body_too_large")


def json_response(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def error_response(dialect: Dialect, error: ApiError) -> Response:
    response = json_response(dialect.error(error), error.status)
    response.headers.update(error.headers)
    return response
