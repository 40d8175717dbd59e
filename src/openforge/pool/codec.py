"""Rows and nouns: how a call and a rollout lie in the database.

Invariant: decoding what was encoded gives the same noun back, log-probabilities rounded to float32. Token ids are int32, stored as byte
planes and deflated (the high bytes are nearly always zero: 0.3 to 0.45 of the raw size in 20 microseconds); weight versions as runs;
log-probabilities as raw float32, for deflating those saves only 6 %.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import chain, groupby, repeat
from typing import Any

import msgspec
import numpy as np

from openforge.types import Call, FinishReason, Fork, Outcome, Reward, Rollout, Sampling, Speaker

# Deflate finds these strings without having seen them in a row, which halves the bodies of short calls. Part of the stored format.
_BODY_WORDS = (
    b'"model":"","messages_shared":"temperature":1.0,"top_p":1.0,"max_tokens":,"stream":true,"stream_options":{"include_usage":true},'
    b'"type":"object","properties":{"type":"string"},"required":["tool_choice":"auto","tools":[{"type":"function","function":{"name":"",'
    b'"description":"","parameters":{"arguments":"{\\"","error":null,"sampling":{"max_tokens":,"stop_token_ids":['
    b'{"request":{"messages":[{"role":"system","content":"{"role":"user","content":"{"role":"tool","tool_call_id":"call_","content":"'
    b'"response":{"role":"assistant","content":"","reasoning":null,"tool_calls":[{"id":"call_","type":"function","function":{"name":"'
)


def pack_ints(values: Sequence[int]) -> bytes:
    """int32 values, little-endian, as four byte planes, deflated."""
    raw = np.asarray(values, dtype="<i4").view(np.uint8).reshape(-1, 4)
    return zlib.compress(raw.T.tobytes(), 1)


def unpack_ints(blob: bytes) -> list[int]:
    planes = np.frombuffer(zlib.decompress(blob), dtype=np.uint8).reshape(4, -1)
    return np.ascontiguousarray(planes.T).view("<i4").ravel().tolist()


def pack_runs(values: Sequence[int]) -> bytes:
    return np.array([(value, len(list(run))) for value, run in groupby(values)], dtype="<i4").tobytes()


def unpack_runs(blob: bytes) -> list[int]:
    pairs = np.frombuffer(blob, dtype="<i4").reshape(-1, 2).tolist()
    return list(chain.from_iterable(repeat(value, count) for value, count in pairs))


def pack_body(body: Mapping[str, Any]) -> bytes:
    try:
        text = msgspec.json.encode(body)
    except UnicodeEncodeError:  # a lone surrogate, which JSON may carry as an escape and msgspec may not
        text = json.dumps(body).encode()
    deflate = zlib.compressobj(1, zdict=_BODY_WORDS)
    return deflate.compress(text) + deflate.flush()


def unpack_body(blob: bytes) -> dict[str, Any]:
    text = zlib.decompressobj(zdict=_BODY_WORDS).decompress(blob)
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return json.loads(text)  # type: ignore[no-any-return]


def _set_fields(noun: Sampling | Speaker) -> dict[str, Any]:
    """A dataclass's fields that are not at their defaults."""
    return {field.name: value for field in fields(noun) if (value := getattr(noun, field.name)) != field.default}


def call_row(call: Call) -> dict[str, Any]:
    same = len(call.sampled) == len(call.logprobs) == len(call.versions)
    assert same, f"call {call.id}: one log-probability and one version per sampled token"
    body = {"request": call.request, "response": call.response, "sampling": _set_fields(call.sampling), "error": call.error}
    if speaker := _set_fields(call.speaker):
        body["speaker"] = speaker
    if call.upstream:
        body["upstream"] = call.upstream
    return {
        "id": call.id,
        "rollout_id": call.rollout_id,
        "arrival": call.index,
        "parent_id": call.parent_id,
        "shared": call.shared,
        "fork": call.fork,
        "finish": call.finish,
        "dialect": call.dialect,
        "delta_tokens": len(call.delta),
        "sampled_tokens": len(call.sampled),
        "newest_version": max(call.versions, default=None),
        "started_at": call.started_at,
        "first_token_at": call.first_token_at,
        "ended_at": call.ended_at,
        "delta": pack_ints(call.delta),
        "sampled": pack_ints(call.sampled),
        "logprobs": np.asarray(call.logprobs, dtype="<f4").tobytes(),
        "versions": pack_runs(call.versions),
        "body": pack_body(body),
    }


def row_call(row: Mapping[Any, Any]) -> Call:
    body = unpack_body(row["body"])
    sampling: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in body["sampling"].items()}
    return Call(
        id=row["id"],
        rollout_id=row["rollout_id"],
        index=row["arrival"],
        parent_id=row["parent_id"],
        shared=row["shared"],
        delta=unpack_ints(row["delta"]),
        sampled=unpack_ints(row["sampled"]),
        logprobs=np.frombuffer(row["logprobs"], dtype="<f4").tolist(),
        versions=unpack_runs(row["versions"]),
        fork=Fork(row["fork"]) if row["fork"] else None,
        finish=FinishReason(row["finish"]),
        sampling=Sampling(**sampling),
        dialect=row["dialect"],
        request=body["request"],
        response=body["response"],
        speaker=Speaker(**body.get("speaker", {})),
        upstream=body.get("upstream", {}),
        error=body["error"],
        started_at=row["started_at"],
        first_token_at=row["first_token_at"],
        ended_at=row["ended_at"],
    )


def rollout_row(rollout: Rollout) -> dict[str, Any]:
    return {
        "id": rollout.id,
        "task_id": rollout.task_id,
        "unit": rollout.unit,
        "place": rollout.index,
        "attempt": rollout.attempt,
        "split": rollout.split,
        "started_at": rollout.started_at,
        **rollout_end(rollout),
    }


def rollout_end(rollout: Rollout) -> dict[str, Any]:
    """The columns that the end of a rollout sets."""
    return {
        "ended_at": rollout.ended_at,
        "outcome": rollout.outcome,
        "reward": rollout.reward.value if rollout.reward else None,
        "reward_parts": rollout.reward.parts if rollout.reward else None,
        "detail": rollout.detail,
        "output": rollout.output,
    }


def row_rollout(row: Mapping[Any, Any]) -> Rollout:
    return Rollout(
        id=row["id"],
        task_id=row["task_id"],
        unit=row["unit"],
        index=row["place"],
        attempt=row["attempt"],
        split=row["split"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        outcome=Outcome(row["outcome"]) if row["outcome"] else None,
        reward=Reward(value=row["reward"], parts=row["reward_parts"]) if row["reward"] is not None else None,
        detail=row["detail"],
        output=row["output"],
    )
