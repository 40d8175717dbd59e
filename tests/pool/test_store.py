from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openforge.pool import Store, UnitState
from openforge.types import Call, FinishReason, Fork, Outcome, Reward, Rollout, Sampling, Task

MakeCall = Callable[..., Call]
MakeRollout = Callable[..., Rollout]


@pytest.fixture(scope="module")
def lasting_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("lasting") / "run.db") as store:
        yield store


async def test_a_call_comes_back_as_it_went_in(store: Store, make_call: MakeCall) -> None:
    call = make_call(
        "c",
        index=3,
        parent_id="b",
        shared=5,
        delta=[0, 2**31 - 1, 151_643],
        sampled=[4, 5, 6],
        logprobs=[-0.25, 0.0, -17.5],
        versions=[2, 2, 3],
        fork=Fork.BRANCH,
        finish=FinishReason.ERROR,
        sampling=Sampling(temperature=0.5, stop=("a", "b"), stop_token_ids=(1, 2), seed=0),
        request={"messages": [{"content": "naïve \U0001f600"}], "nested": {"list": [1, 2.5, None, True]}},
        response={},
        error="CUDA out of memory",
        first_token_at=1.5,
    )
    await store.append(call)
    assert store.calls("r") == [call]


async def test_a_request_with_a_lone_surrogate_is_kept(store: Store, make_call: MakeCall) -> None:
    call = make_call("c", request={"content": "\ud800 and more"})
    await store.append(call)
    assert store.calls("r") == [call]


async def test_a_call_without_tokens_is_kept(store: Store, make_call: MakeCall) -> None:
    call = make_call("c", delta=[], sampled=[], finish=FinishReason.ABORTED)
    await store.append(call)
    assert store.calls("r") == [call]
    assert store.sequence("c") == []


async def test_append_is_idempotent_and_the_first_wins(store: Store, make_call: MakeCall) -> None:
    call = make_call("c")
    await asyncio.gather(store.append(call), store.append(call), store.append(dataclasses.replace(call, sampled=[9, 9])))
    assert store.calls("r") == [call]
    assert store.counts().calls == 1


async def test_calls_are_read_in_arrival_order_of_their_rollout(store: Store, make_call: MakeCall) -> None:
    for index in (2, 0, 1):
        await store.append(make_call(f"c{index}", index=index))
    await store.append(make_call("other", rollout_id="s"))
    assert [call.id for call in store.calls("r")] == ["c0", "c1", "c2"]


async def test_200_concurrent_appends_share_commits_and_all_stand(store: Store, make_call: MakeCall) -> None:
    calls = [make_call(f"c{i:03d}", index=i, sampled=[i, i + 1]) for i in range(200)]
    await asyncio.gather(*map(store.append, calls))
    assert store.calls("r") == calls
    assert store.commits <= 20


async def test_a_cancelled_append_is_written_all_the_same(store: Store, make_call: MakeCall) -> None:
    task = asyncio.create_task(store.append(make_call("c")))
    await asyncio.sleep(0)
    task.cancel()
    store.close()
    assert store.counts().calls == 1


async def test_one_bad_write_fails_alone_in_its_batch(store: Store, make_call: MakeCall) -> None:
    good = [store.append(make_call(f"c{i}")) for i in range(20)]
    bad = [store.append(make_call("unserialisable", request={"x": object()})), store.finish_unit(99)]
    results = await asyncio.gather(*good[:10], *bad, *good[10:], return_exceptions=True)
    assert [type(result) for result in results[10:12]] == [TypeError, AssertionError]
    assert results[:10] + results[12:] == [None] * 20
    assert store.counts().calls == 20


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_prompts_are_put_together_along_parents(data: st.DataObject, make_call: MakeCall, lasting_store: Store) -> None:
    tokens = st.lists(st.integers(0, 200_000), max_size=6)
    calls: list[Call] = []
    prompts: dict[str, list[int]] = {}
    whole: dict[str, list[int]] = {}
    example = uuid.uuid4().hex
    for number in range(data.draw(st.integers(1, 12))):
        parent = data.draw(st.none() | st.sampled_from(sorted(whole))) if whole else None
        before = whole[parent] if parent else []
        shared = data.draw(st.integers(0, len(before)))
        call = make_call(f"{example}-{number}", parent_id=parent, shared=shared, delta=data.draw(tokens), sampled=data.draw(tokens))
        prompts[call.id] = before[:shared] + call.delta
        whole[call.id] = prompts[call.id] + call.sampled
        calls.append(call)

    async def write() -> None:
        await asyncio.gather(*map(lasting_store.append, calls))

    asyncio.run(write())
    for id in whole:
        assert lasting_store.prompt_ids(id) == prompts[id]
        assert lasting_store.sequence(id) == whole[id]


async def test_a_rollouts_outcome_is_set_exactly_once(store: Store, make_rollout: MakeRollout) -> None:
    started = make_rollout("r")
    await store.start_rollout(started)
    await store.start_rollout(started)
    assert store.rollouts() == [started]
    ended = dataclasses.replace(
        started, ended_at=5.0, outcome=Outcome.FINISHED, reward=Reward(value=0.5, parts={"exact": 0.5}), output="42\x00", detail=""
    )
    await store.end_rollout(ended)
    await store.end_rollout(dataclasses.replace(ended, outcome=Outcome.CANCELLED, reward=None))
    assert store.rollout("r") == ended
    assert store.counts().rollouts == {Outcome.FINISHED: 1}


async def test_a_reward_that_is_not_finite_and_an_unknown_rollout_are_refused(store: Store, make_rollout: MakeRollout) -> None:
    rollout = make_rollout("r", outcome=Outcome.FINISHED, ended_at=2.0)
    with pytest.raises(AssertionError, match="never started"):
        await store.end_rollout(rollout)
    with pytest.raises(AssertionError, match="not finite"):
        await store.end_rollout(dataclasses.replace(rollout, reward=Reward(value=float("nan"))))


async def test_rollouts_are_filtered_by_split_and_unit(store: Store, make_rollout: MakeRollout) -> None:
    await store.start_rollout(make_rollout("a", unit=0))
    await store.start_rollout(make_rollout("b", unit=1))
    await store.start_rollout(make_rollout("e", unit=-1, split="eval"))
    assert [rollout.id for rollout in store.rollouts(split="train")] == ["a", "b"]
    assert [rollout.id for rollout in store.rollouts(unit=1)] == ["b"]
    assert [rollout.id for rollout in store.rollouts(split="eval")] == ["e"]
    assert store.rollout("nobody") is None


async def test_a_group_is_the_last_attempt_at_each_place(store: Store, make_rollout: MakeRollout) -> None:
    for id, index, attempt in (("b0", 1, 0), ("a0", 0, 0), ("b1", 1, 1)):
        await store.start_rollout(make_rollout(id, index=index, attempt=attempt))
    assert [rollout.id for rollout in store.group(0)] == ["a0", "b1"]


async def test_tasks_are_kept_once(store: Store) -> None:
    task = Task(id="t", instruction="add", domain="maths", data={"answer": 3})
    await store.put_tasks([task])
    await store.put_tasks([dataclasses.replace(task, instruction="other")])
    await store.put_tasks([])
    assert store.task("t") == task
    assert store.task("u") is None


async def test_units_move_through_their_states_and_never_back(store: Store) -> None:
    for unit in range(3):
        await store.start_unit(unit, "t", 8)
    await store.finish_unit(0)
    await store.finish_unit(0)
    await store.finish_unit(1)
    await store.evict_unit(2, "the head's deadline passed")
    await store.evict_unit(2, "again")
    await store.commit_checkpoint(1, 1, "checkpoints/1", {1: [0]})
    await store.start_unit(0, "t", 8)
    assert [(unit.unit, unit.state, unit.step, unit.reason) for unit in store.units()] == [
        (0, UnitState.TRAINED, 1, ""),
        (1, UnitState.FINISHED, None, ""),
        (2, UnitState.EVICTED, None, "the head's deadline passed"),
    ]
    for wrong in (store.finish_unit(2), store.evict_unit(0, "late"), store.finish_unit(0)):
        with pytest.raises(AssertionError, match="cannot become"):
            await wrong
    assert [unit.unit for unit in store.units(state=UnitState.FINISHED)] == [1]
    assert store.counts().units == {UnitState.TRAINED: 1, UnitState.FINISHED: 1, UnitState.EVICTED: 1}


async def test_a_unit_is_never_trained_twice(store: Store) -> None:
    for unit in range(4):
        await store.start_unit(unit, "t", 8)
        await store.finish_unit(unit)
    await store.commit_checkpoint(2, 2, "checkpoints/2", {1: [0], 2: [2]})
    assert store.steps() == {1: [0], 2: [2]}
    with pytest.raises(AssertionError, match="not waiting"):
        await store.commit_checkpoint(3, 3, "checkpoints/3", {3: [1, 2]})
    assert store.steps() == {1: [0], 2: [2]}
    assert [checkpoint.step for checkpoint in store.checkpoints()] == [2]


async def test_storage_is_of_the_order_of_new_tokens(store: Store, tmp_path: Path, make_call: MakeCall) -> None:
    """A rollout of 100 calls whose last prompt has 12,000 tokens stores 12,000 tokens, not the sum of all prompts (600,000)."""
    calls, length, word = [], 0, "carry the two and count what is left of the apples "
    for index in range(100):
        delta = [(index * 7919 + i * 104_729) % 49_152 for i in range(60)]
        sampled = [(index * 6007 + i * 15_485_863) % 49_152 for i in range(60)]
        logprobs = [-(((index * 31 + i * 17) % 1009) ** 1.37) / 4096 for i in range(60)]
        messages = [{"role": "tool", "tool_call_id": f"call_{index}", "content": word[index % 9 :] * 5}]
        calls.append(
            make_call(
                f"{index:032x}",
                rollout_id="0123456789abcdef0123456789abcdef",
                index=index,
                parent_id=f"{index - 1:032x}" if index else None,
                shared=length,
                delta=delta,
                sampled=sampled,
                logprobs=logprobs,
                versions=[index // 30] * 60,
                request={"messages_shared": index * 2, "messages": messages, "model": "m"},
                response={"role": "assistant", "content": word[index % 5 :] * 4},
            )
        )
        length += 120
    await asyncio.gather(*map(store.append, calls))
    store.close()
    new_tokens = sum(4 * len(call.delta) + 12 * len(call.sampled) for call in calls)
    assert (tmp_path / "run.db").stat().st_size <= 1.2 * new_tokens + 64 * 1024
    with Store.open(tmp_path / "run.db") as again:
        assert len(again.sequence(calls[-1].id)) == 12_000
