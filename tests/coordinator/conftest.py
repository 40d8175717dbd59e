from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from openforge.types import Call, FinishReason, Fork, Sampling, Speaker


class Calls(dict[str, Call]):
    """Calls of one rollout by id, with token ids that are all different unless the test says otherwise."""

    def __init__(self) -> None:
        self._token = 0

    def fresh(self, count: int) -> list[int]:
        self._token += count
        return list(range(self._token - count, self._token))

    def length(self, id: str) -> int:
        return self[id].shared + len(self[id].delta) + len(self[id].sampled)

    def add(
        self,
        id: str,
        parent: str | None = None,
        *,
        shared: int | None = None,
        delta: list[int] | int = 3,
        sampled: int = 4,
        fork: Fork | None = None,
        finish: FinishReason = FinishReason.STOP,
        tools: bool = True,
        ended_at: float = 1.0,
        started_at: float = 0.0,
        messages: Sequence[dict[str, Any]] = (),
        messages_shared: int = 0,
        says: str = "",
        asks: Sequence[dict[str, str]] = (),
        speaker: Speaker = Speaker(),  # noqa: B008 (frozen)
    ) -> Call:
        """`shared` None keeps all of the parent. `asks`: arguments of the reply's tool calls."""
        whole = self.length(parent) if parent else 0
        new = self.fresh(sampled)
        call = Call(
            id=id,
            rollout_id="r",
            index=len(self),
            parent_id=parent,
            shared=whole if shared is None else shared,
            delta=delta if isinstance(delta, list) else self.fresh(delta),
            sampled=new,
            logprobs=[-0.5 - token for token in new],
            versions=[token % 3 for token in new],
            fork=fork,
            finish=finish,
            sampling=Sampling(),
            dialect="chat",
            request={
                "messages": list(messages),
                "messages_shared": messages_shared,
                **({"tools": [{"name": "calculator"}]} if tools else {}),
            },
            response={
                "role": "assistant",
                "content": says,
                "tool_calls": [{"id": f"{id}{n}", "name": "f", "arguments": json.dumps(ask)} for n, ask in enumerate(asks)],
            },
            speaker=speaker,
            started_at=started_at,
            ended_at=ended_at,
        )
        self[id] = call
        return call

    def prompt(self, id: str) -> int:
        """Length of the prompt."""
        return self[id].shared + len(self[id].delta)


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture(scope="session")
def new_calls() -> Callable[[], Calls]:
    return Calls
