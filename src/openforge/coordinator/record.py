"""Whether recorded calls fit together.

Invariant: calls that do not are a `UserError` that names rollout and call, never a guess: the gateway records none, so the log was damaged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from openforge.types import Call, UserError


def by_id(calls: Sequence[Call]) -> dict[str, Call]:
    """The calls of one rollout, each with its tokens complete."""
    found: dict[str, Call] = {}
    for call in calls:
        if call.id in found:
            raise damaged(call, "it is there twice")
        if not len(call.sampled) == len(call.logprobs) == len(call.versions):
            counts = f"{len(call.sampled)} sampled tokens, {len(call.logprobs)} log-probabilities and {len(call.versions)} versions"
            raise damaged(call, f"it has {counts}")
        found[call.id] = call
    return found


def ancestry(calls: Mapping[str, Call], id: str, known: Collection[str] = ()) -> list[str]:
    """From a call up to its root, or to the first that is `known`. `calls`: those of its rollout, by id."""
    path = [id]
    while path[-1] not in known and (parent := calls[path[-1]].parent_id) is not None:
        if parent not in calls:
            raise damaged(calls[path[-1]], f"its parent {parent} is missing")
        if len(path) >= len(calls):
            raise damaged(calls[parent], "it is its own ancestor")
        path.append(parent)
    return path


def damaged(call: Call, what: str) -> UserError:
    how = "the call log is damaged; restore the run's database from a copy or begin a new run"
    return UserError(f"rollout {call.rollout_id}, call {call.id}: {what}: {how}")
