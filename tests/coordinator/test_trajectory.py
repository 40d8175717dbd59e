from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openforge.coordinator import delivered, lineages, mask, trajectories
from openforge.pool import Store
from openforge.types import FinishReason, Fork, LineageKind, MaskReason, Trajectory


@pytest.fixture(scope="module")
def lasting_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("lasting") / "run.db") as store:
        yield store


@st.composite
def forests(draw: st.DrawFn, new: Callable[[], Any]) -> Any:
    """Any forest a gateway could record: extensions, edits in prompts and in replies, retries either way, failures, no reply."""
    calls = new()
    for number in range(draw(st.integers(1, 12))):
        id, parent, extra = f"{draw(st.integers(0, 99))}-{number}", None, {}
        if calls and draw(st.booleans() | st.just(True)):
            parent = draw(st.sampled_from(sorted(calls)))
        match draw(st.sampled_from(["extend", "extend", "edit", "repeat", "repeat under"])) if parent else "root":
            case "edit":
                extra = {"shared": draw(st.integers(0, calls.length(parent))), "fork": Fork.EDITED}
            case "repeat":
                twin = calls[parent]
                parent, extra = twin.parent_id, {"shared": twin.shared, "delta": twin.delta, "fork": Fork.RETRY}
            case "repeat under":
                extra = {"shared": calls.prompt(parent), "delta": [], "fork": Fork.RETRY}
        calls.add(
            id,
            parent,
            sampled=draw(st.integers(0, 4)),
            finish=draw(st.sampled_from(FinishReason)),
            tools=draw(st.booleans()),
            ended_at=draw(st.floats(0, 9)),
            **extra,
        )
    return calls


def whole(trajectory: Trajectory) -> list[int]:
    """Its sequence from the root."""
    above = whole(trajectory.parent)[: trajectory.shared] if trajectory.parent is not None else []
    return above + trajectory.tokens.tolist()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_every_sampled_token_is_in_exactly_one_trajectory(data: st.DataObject, new_calls: Callable[[], Any]) -> None:
    calls = data.draw(forests(new_calls))
    found = trajectories(list(calls.values()))
    owned = Counter(int(token) for trajectory in found for token in trajectory.tokens[trajectory.sampled])
    assert owned == Counter(token for call in calls.values() for token in call.sampled)  # ids of sampled tokens are all different
    for trajectory in found:
        own = trajectory.sampled
        assert trajectory.sampled.sum() == trajectory.trained.sum() + sum(trajectory.masked.values())
        assert not (trajectory.trained & ~own).any()
        np.testing.assert_array_equal(trajectory.logprobs, np.where(own, -0.5 - trajectory.tokens, 0).astype(np.float32))
        np.testing.assert_array_equal(trajectory.versions, np.where(own, trajectory.tokens % 3, -1))
        assert {array.dtype for array in (trajectory.tokens, trajectory.versions)} == {np.dtype(np.int32)}
        for id, end in zip(trajectory.call_ids, trajectory.ends, strict=True):
            assert trajectory.tokens[end - len(calls[id].sampled) : end].tolist() == calls[id].sampled
        assert trajectory.ends[-1] == len(trajectory.tokens)
    total = delivered(found)
    assert total.sampled == total.trained + sum(total.masked.values()) == sum(len(call.sampled) for call in calls.values())
    failed = {FinishReason.ABORTED, FinishReason.ERROR}
    if all(call.finish not in failed and call.fork is not Fork.RETRY for call in calls.values()):
        assert set(total.masked) <= {MaskReason.SIDE}


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_all_trajectories_together_are_no_longer_than_the_record(data: st.DataObject, new_calls: Callable[[], Any]) -> None:
    calls = data.draw(forests(new_calls))
    found = {t for trajectory in trajectories(list(calls.values())) for t in with_parents(trajectory)}
    replies = sum(len(call.sampled) for call in calls.values())
    prompts = sum(len(call.delta) for call in calls.values())
    assert sum(len(t.tokens) for t in found) <= replies + 2 * prompts  # behind a dropped reply, what was said instead is repeated once
    for t in found:
        if t.parent is not None:
            assert t.parent.shared < t.shared <= len(whole(t.parent))
        else:
            assert t.shared == 0


def with_parents(trajectory: Trajectory) -> list[Trajectory]:
    return [trajectory, *(with_parents(trajectory.parent) if trajectory.parent is not None else [])]


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_lineages_are_chains_that_cover_all_calls_whatever_the_order(data: st.DataObject, new_calls: Callable[[], Any]) -> None:
    calls = data.draw(forests(new_calls))
    found = lineages(list(calls.values()))
    assert sorted(id for lineage in found for id in lineage.call_ids) == sorted(calls)
    assert [lineage.kind for lineage in found[1:]].count(LineageKind.MAIN) == 0
    shuffled = data.draw(st.permutations(list(calls.values())))
    assert lineages([replace(call, index=index) for index, call in enumerate(shuffled)]) == found


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_trajectory_is_its_last_calls_sequence_in_the_store(
    data: st.DataObject, new_calls: Callable[[], Any], lasting_store: Store
) -> None:
    prefix = uuid.uuid4().hex
    calls = [
        replace(call, id=prefix + call.id, parent_id=call.parent_id and prefix + call.parent_id, rollout_id=prefix)
        for call in data.draw(forests(new_calls)).values()
    ]

    async def write() -> None:
        await asyncio.gather(*map(lasting_store.append, calls))

    asyncio.run(write())
    stored = lasting_store.calls(prefix)
    tails = {lineage.call_ids[-1]: lineage for lineage in lineages(stored)}
    for trajectory in trajectories(stored):
        assert trajectory.kind is tails[trajectory.call_ids[-1]].kind
        assert whole(trajectory) == lasting_store.sequence(trajectory.call_ids[-1])


def test_a_shared_prefix_is_trained_once(calls: Any) -> None:
    for id, parent in (("a", None), ("b", "a"), ("c", "b"), ("x", "a"), ("y", "x"), ("z", "a")):
        calls.add(id, parent)
    found = trajectories(list(calls.values()))
    assert [(t.kind, t.call_ids, int(t.trained.sum())) for t in found] == [
        (LineageKind.MAIN, ["a", "b", "c"], 12),
        (LineageKind.SUB_AGENT, ["x", "y"], 8),
        (LineageKind.ORPHAN, ["z"], 4),
    ]
    assert [(t.parent, t.shared) for t in found] == [(None, 0), (found[0], 7), (found[0], 7)]


def test_masks_name_their_reasons(calls: Any) -> None:
    first = calls.add("a")
    calls.add("a2", delta=first.delta, fork=Fork.RETRY)
    calls.add("b", "a2", finish=FinishReason.ABORTED)
    calls.add("c", "b")
    calls.add("d", "c", finish=FinishReason.ABORTED, sampled=2)
    calls.add("e", "c", finish=FinishReason.ERROR, sampled=3)
    calls.add("title", tools=False, sampled=5, fork=Fork.ROOT)
    total = delivered(trajectories(list(calls.values())))
    assert total.trained == 12
    assert total.masked == {MaskReason.RETRY: 4, MaskReason.ABORTED: 2, MaskReason.ERROR: 3, MaskReason.SIDE: 5}


def test_masking_all_keeps_earlier_reasons(calls: Any) -> None:
    calls.add("a")
    calls.add("b", "a", finish=FinishReason.ERROR, sampled=2)
    masked = [mask(trajectory, MaskReason.NO_REWARD) for trajectory in trajectories(list(calls.values()))]
    assert not any(trajectory.trained.any() for trajectory in masked)
    assert delivered(masked).masked == {MaskReason.NO_REWARD: 4, MaskReason.ERROR: 2}
    assert delivered([]).sampled == 0


def test_a_hundred_calls_make_one_trajectory(calls: Any) -> None:
    parent = None
    for number in range(100):
        parent = calls.add(f"{number:03d}", parent).id
    (only,) = trajectories(list(calls.values()))
    assert (len(only.tokens), int(only.trained.sum()), len(only.call_ids)) == (700, 400, 100)
