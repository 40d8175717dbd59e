from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openforge.pool import Store
from openforge.types import Call, FinishReason, Rollout, Sampling


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "run.db") as store:
        yield store


@pytest.fixture(scope="session")
def make_call() -> Callable[..., Call]:
    def make(id: str, **fields: object) -> Call:
        sampled = fields.get("sampled", [7, 8])
        assert isinstance(sampled, list)
        defaults = {
            "rollout_id": "r",
            "index": 0,
            "parent_id": None,
            "shared": 0,
            "delta": [1, 2, 3],
            "sampled": sampled,
            "logprobs": [-0.5] * len(sampled),
            "versions": [0] * len(sampled),
            "finish": FinishReason.STOP,
            "sampling": Sampling(),
            "dialect": "chat",
            "request": {"messages": [{"role": "user", "content": "hi"}]},
            "response": {"role": "assistant", "content": "ho"},
            "started_at": 1.0,
            "ended_at": 2.0,
        }
        return Call(id=id, **(defaults | fields))  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def make_rollout() -> Callable[..., Rollout]:
    def make(id: str, **fields: object) -> Rollout:
        return Rollout(id=id, **({"task_id": "t", "unit": 0, "index": 0, "started_at": 1.0} | fields))  # type: ignore[arg-type]

    return make
