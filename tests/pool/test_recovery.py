from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from openforge.pool import Checkpoint, Place, Scheduler, Store, UnfinishedUnit, UnitState
from openforge.types import Call, Outcome, Rollout

MakeRollout = Callable[..., Rollout]


async def _run(store: Store, rollout: Rollout, outcome: Outcome | None = Outcome.FINISHED) -> None:
    await store.start_rollout(rollout)
    if outcome:
        await store.end_rollout(replace(rollout, outcome=outcome, ended_at=2.0))


async def test_a_new_run_has_nothing_to_recover(store: Store) -> None:
    recovery = await store.recover()
    assert (recovery.checkpoint, recovery.step, recovery.next_unit) == (None, 0, 0)
    assert (recovery.finished, recovery.running, recovery.cancelled) == ((), (), ())


async def test_only_places_the_crash_cut_off_run_again(store: Store, make_rollout: MakeRollout) -> None:
    await store.start_unit(0, "t", 4)
    await _run(store, make_rollout("done", index=0))
    await _run(store, make_rollout("failed", index=1), Outcome.ENV_ERROR)
    await _run(store, make_rollout("stopped", index=2), Outcome.CANCELLED)
    await _run(store, make_rollout("again", index=2, attempt=1), None)
    recovery = await store.recover()
    assert recovery.running == (
        UnfinishedUnit(unit=0, task_id="t", group_size=4, missing=(Place(index=2, attempt=2), Place(index=3, attempt=0))),
    )
    assert recovery.cancelled == ("again",)
    ended = store.rollout("again")
    assert ended is not None
    assert ended.outcome is Outcome.CANCELLED
    assert "died" in ended.detail
    assert recovery.next_unit == 1


async def test_a_unit_whose_rollouts_all_ended_is_finished(store: Store, make_rollout: MakeRollout) -> None:
    await store.start_unit(0, "t", 2)
    await _run(store, make_rollout("a", index=0))
    await _run(store, make_rollout("b", index=1), Outcome.TIMEOUT)
    recovery = await store.recover()
    assert recovery.finished == (0,)
    assert recovery.running == ()
    assert store.units()[0].state is UnitState.FINISHED


async def test_steps_after_the_last_checkpoint_go_back_to_the_queue(store: Store) -> None:
    for unit in range(6):
        await store.start_unit(unit, "t", 1)
    for unit in (2, 0, 1, 3):
        await store.finish_unit(unit)
    await store.evict_unit(4, "deadline")
    await store.commit_checkpoint(1, 1, "checkpoints/1", {1: [0]})
    # Steps 2 and 3 took units 1 and 2, and then the process died.
    recovery = await store.recover()
    assert recovery.checkpoint == Checkpoint(step=1, version=1, path="checkpoints/1")
    assert recovery.finished == (2, 1, 3)
    assert [unit.unit for unit in recovery.running] == [5]
    assert recovery.next_unit == 6


async def test_recovering_twice_finds_the_same(store: Store, make_rollout: MakeRollout) -> None:
    await store.start_unit(0, "t", 2)
    await _run(store, make_rollout("a"), None)
    first = await store.recover()
    second = await store.recover()
    assert (first.finished, first.running) == (second.finished, second.running)
    assert (first.cancelled, second.cancelled) == (("a",), ())


async def test_calls_of_a_cancelled_rollout_are_kept(store: Store, make_rollout: MakeRollout, make_call: Callable[..., Call]) -> None:
    await _run(store, make_rollout("r"), None)
    await store.append(make_call("c"))
    await store.recover()
    assert [call.id for call in store.calls("r")] == ["c"]


async def test_the_scheduler_goes_on_with_the_same_places_in_the_queue(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    before = Scheduler("windowed", 4, 2, 2)
    with Store.open(path) as store:
        for _ in range(4):
            await store.start_unit(before.launch(), "t", 1)
        for unit in (1, 2, 3):
            before.finish(unit)
            await store.finish_unit(unit)
    with Store.open(path) as store:
        after = Scheduler("windowed", 4, 2, 2)
        recovery = await store.recover()
        after.restore(recovery.next_unit, [unit.unit for unit in recovery.running], recovery.finished)
    assert (after.head, after.outstanding, after.take()) == (0, 4, None)
    after.finish(0)
    assert after.take() == [0, 1]
    after.published()
    assert after.launch() == 4


async def test_a_restored_queue_that_is_too_long_launches_only_when_it_has_drained(store: Store) -> None:
    for unit in range(5):
        await store.start_unit(unit, "t", 1)
        await store.finish_unit(unit)
    scheduler = Scheduler("windowed", 2, 1, 2)
    recovery = await store.recover()
    scheduler.restore(recovery.next_unit, [], recovery.finished)
    assert not scheduler.may_launch()
    assert scheduler.take() == [0, 1]
    scheduler.published()
    assert not scheduler.may_launch()
    assert scheduler.take() == [2, 3]
    scheduler.published()
    assert scheduler.launch() == 5
