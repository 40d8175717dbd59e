"""From the call log to the tree: what `parent_id` and `shared` say is what whole prompts would have said."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from forest_cases import VOCABULARY, contributions, root_path
from hypothesis import given
from hypothesis import strategies as st

from openforge.coordinator import trajectories
from openforge.trees.build import build
from openforge.types import Call, FinishReason, Fork, Sampling

ids = st.lists(st.integers(0, VOCABULARY - 1), max_size=5)


@st.composite
def rollouts(draw: st.DrawFn) -> dict[str, dict[str, Call]]:
    """Rollout → its calls: any parents, shared anywhere, equal tokens in different places, retries, failures, empty replies."""
    made: dict[str, dict[str, Call]] = {}
    for rollout in draw(st.sampled_from(["a", "ab", "abc"])):
        calls = made.setdefault(rollout, {})
        for number in range(draw(st.integers(1, 8))):
            parent = draw(st.sampled_from(sorted(calls))) if calls and draw(st.integers(0, 4)) else None
            length = len(whole(calls, parent)) if parent else 0
            shared = length if draw(st.booleans()) else draw(st.integers(0, length))
            id, sampled = f"{rollout}{draw(st.integers(0, 9))}{number}", draw(ids)
            calls[id] = Call(
                id=id,
                rollout_id=rollout,
                index=number,
                parent_id=parent,
                shared=shared,
                delta=draw(ids) or ([0] if not shared else []),
                sampled=sampled,
                logprobs=[-0.25 * number] * len(sampled),
                versions=[number] * len(sampled),
                fork=draw(st.sampled_from([None, Fork.BRANCH, Fork.EDITED, Fork.RETRY])),
                finish=draw(st.sampled_from([FinishReason.STOP, FinishReason.STOP, FinishReason.ABORTED])),
                sampling=Sampling(),
                dialect="chat",
                request={"messages": [], "tools": [{"name": "f"}]},
                response={"role": "assistant", "content": ""},
                started_at=0.0,
                ended_at=draw(st.floats(1, 9)),
            )
    return made


def whole(calls: Mapping[str, Call], id: str) -> list[int]:
    call = calls[id]
    return (whole(calls, call.parent_id)[: call.shared] if call.parent_id else []) + call.delta + call.sampled


@given(made=rollouts())
def test_the_tree_holds_the_trained_tokens_of_all_calls_behind_their_whole_prompts(made: dict[str, dict[str, Call]]) -> None:
    found = [trajectory for calls in made.values() for trajectory in trajectories(list(calls.values()))]
    weights = [np.linspace(0.5, 1, len(trajectory.tokens), dtype=np.float32) for trajectory in found]
    advantages = {rollout: float(len(calls)) for rollout, calls in made.items()}
    tree = build(found, advantages, weights, VOCABULARY)

    expected = []
    for trajectory, weight in zip(found, weights, strict=True):
        rollout = trajectory.rollout_id
        for id, end in zip(trajectory.call_ids, trajectory.ends, strict=True):
            call, tokens = made[rollout][id], whole(made[rollout], id)
            for back in range(1, len(call.sampled) + 1):
                if trajectory.trained[end - back]:
                    numbers = (advantages[rollout], float(weight[end - back]), call.index)
                    expected.append((rollout, tuple(tokens[:-back]), tokens[-back], -0.25 * call.index, *numbers))
    assert contributions(tree) == sorted(expected)
    paths = [root_path(tree, position) for position in range(len(tree.tokens))]
    assert len(set(paths)) == len(paths)
    assert set(paths) == {prefix[:k] for _, prefix, *_ in expected for k in range(1, len(prefix) + 1)}
