"""Calls that are known as text only, made ready for the forest: each message stands for a token.

Invariant: what such a call shares with its parent in messages is what any other shares in tokens, so the same rules find its lineage.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from openforge.types import Call


def by_messages(calls: Sequence[Call]) -> list[Call]:
    """The calls of one rollout, those that an upstream API answered with ids of their messages. Counts of tokens have no messages."""
    return [_stand_in(call) if "messages" in call.request and not call.delta and not call.shared else call for call in calls]


def conversation(calls: Mapping[str, Call], id: str) -> list[dict[str, Any]]:
    """The messages of a call as recorded, put together along its parents; the last is its reply. `calls`: those of its rollout, by id."""
    line = [calls[id]]
    while (parent := line[-1].parent_id) is not None:
        line.append(calls[parent])
    rows: list[dict[str, Any]] = []
    for call in reversed(line):
        del rows[call.request.get("messages_shared", 0) :]
        rows += [*call.request.get("messages", ()), call.response]
    return rows


def offered_tools(calls: Mapping[str, Call], id: str) -> list[dict[str, Any]]:
    """The tools of a call as recorded: its root's, for a call with a parent has its parent's."""
    call = calls[id]
    while call.parent_id is not None:
        call = calls[call.parent_id]
    return list(call.request.get("tools", ()))


def _stand_in(call: Call) -> Call:
    return replace(
        call,
        shared=call.request["messages_shared"],
        delta=[_token(row) for row in call.request["messages"]],
        sampled=[_token(call.response)],
        logprobs=[0.0],
        versions=[0],
    )


def _token(row: Mapping[str, Any]) -> int:
    digest = hashlib.blake2b(json.dumps(row, sort_keys=True).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1
