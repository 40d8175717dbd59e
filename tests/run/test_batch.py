"""From recorded groups to an optimizer batch: what the metrics say, and what becomes of data that cannot be trained on."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openforge.engines.training import TrainEngine, TrainSettings
from openforge.pool import Store
from openforge.run.batch import Batch, Group, make_batch, read_groups
from openforge.types import Call, FinishReason, MaskReason, Outcome, Reward, Rollout, Sampling, Task, UserError

VOCABULARY, CONTEXT = 258, 1024


def _call(id: str, parent: Call | None = None, *, rollout: str = "r0", delta: list[int], sampled: list[int], **changes: Any) -> Call:
    fields: dict[str, Any] = {
        "id": id,
        "rollout_id": rollout,
        "index": 0,
        "parent_id": parent and parent.id,
        "shared": parent.shared + len(parent.delta) + len(parent.sampled) if parent else 0,
        "delta": delta,
        "sampled": sampled,
        "logprobs": [-1.0] * len(sampled),
        "versions": [0] * len(sampled),
        "finish": FinishReason.STOP,
        "sampling": Sampling(),
        "dialect": "chat",
        "request": {"messages": [], "tools": [{"name": "f"}]},
        "response": {},
        "started_at": 0.0,
        "ended_at": 1.0,
    }
    return Call(**fields | changes)


def _batch(*rollouts: list[Call], vocabulary: int = VOCABULARY, context_length: int = CONTEXT) -> Batch:
    """One group; the first rollout has the reward 0, the others 1."""
    members = [
        (Rollout(id=f"r{i}", task_id="t", unit=0, index=i, outcome=Outcome.FINISHED, reward=Reward(value=float(i > 0))), calls)
        for i, calls in enumerate(rollouts)
    ]
    group = Group(domain="default", group=0, members=members)
    return make_batch([group], TrainSettings(), version=0, vocabulary=vocabulary, context_length=context_length)


def _other() -> list[Call]:
    return [_call("other", rollout="r1", delta=[1, 2], sampled=[3, 4])]


def test_prefixes_won_back_are_summed_over_the_calls() -> None:
    won = [{}, {"normalised": {"removed": [], "prefix_won": 40}}, {"normalised": {"removed": [], "prefix_won": 2}}]
    calls = [_call(str(i), delta=[1, 2], sampled=[3], request={"messages": [], **note}) for i, note in enumerate(won)]
    assert _batch(calls).row["prefix_won"] == 42


def test_tokens_without_a_log_probability_are_masked_counted_and_the_run_goes_on(tmp_path: Path, tiny_model: Path) -> None:
    first = _call("a", delta=[1, 2], sampled=[3, 4, 5, 6], logprobs=[-1.0, math.nan, math.inf, None])
    second = _call("b", first, delta=[7], sampled=[8, 9], logprobs=[-math.inf, -1.0])

    async def write(store: Store) -> None:
        for call in (first, second):
            await store.append(call)

    with Store.open(tmp_path / "calls.db") as store:
        asyncio.run(write(store))
        batch = _batch(store.calls("r0"), _other())
    assert batch.tree is not None
    assert batch.row["masked"] == {MaskReason.NO_LOGPROB: 4}
    assert sorted(batch.tree.targets.tolist()) == [3, 3, 4, 9]
    assert batch.tree.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    metrics = TrainEngine(tiny_model, TrainSettings()).step([batch.tree])
    assert (metrics["skipped"], metrics["tokens"]) == (0, 4)
    assert math.isfinite(metrics["loss"])


def test_tokens_beyond_the_models_context_are_masked_and_get_no_position(tiny_model: Path) -> None:
    first = _call("a", delta=[1, 2], sampled=[3, 4])
    second = _call("b", first, delta=[5] * (CONTEXT - 5), sampled=[6, 7, 8])
    third = _call("c", second, delta=[9], sampled=[10])
    engine = TrainEngine(tiny_model, TrainSettings())
    batch = _batch([first, second, third], _other(), vocabulary=engine.vocabulary, context_length=engine.context_length)
    assert batch.tree is not None
    assert batch.row["masked"] == {MaskReason.CONTEXT_LENGTH: 3}
    assert batch.row["trained_tokens"] == 5
    assert len(batch.tree.tokens) == CONTEXT - 1


def test_an_id_outside_the_vocabulary_names_rollout_and_call() -> None:
    first = _call("a", delta=[1, 2], sampled=[3])
    for delta, sampled in (([VOCABULARY], [4]), ([4], [VOCABULARY]), ([-1], [4])):
        with pytest.raises(
            UserError, match=r"rollout r0, call b: token id (258|-1) .* vocabulary of 258: was it sampled from this model\?"
        ):
            _batch([first, _call("b", first, delta=delta, sampled=sampled)], _other())


def test_a_batch_of_which_nothing_is_left_has_no_tree() -> None:
    unknown = [_call("a", delta=[1, 2], sampled=[3], logprobs=[math.nan])]
    late = [_call("b", rollout="r1", delta=[1, 2], sampled=[3])]
    batch = _batch(unknown, late, context_length=2)
    assert batch.tree is None
    assert batch.row["masked"] == {MaskReason.CONTEXT_LENGTH: 2}
    assert batch.row["trained_tokens"] == 0


def test_a_damaged_log_stops_with_rollout_and_call() -> None:
    with pytest.raises(UserError, match=r"rollout r0, call b: its parent a is missing"):
        _batch([_call("b", _call("a", delta=[1], sampled=[2]), delta=[1], sampled=[2])], _other())
    with pytest.raises(UserError, match=r"rollout r0, call a: its reply has no prompt before it"):
        _batch([_call("a", delta=[], sampled=[2])], _other())


async def test_single_rollouts_are_compared_with_what_was_known_when_they_could_first_be_trained(tmp_path: Path) -> None:
    """Unit 6 never got a reward; 5 ended first, 7 made the rewards differ, 4 came late, to a known mean."""
    ends = {4: (9.0, 0.25), 5: (1.0, 1.0), 6: (2.0, None), 7: (3.0, 0.0)}
    with Store.open(tmp_path / "calls.db") as store:
        await store.put_tasks([Task(id="t", instruction="", domain="code")])
        for unit, (ended, reward) in ends.items():
            rollout = Rollout(id=f"r{unit}", task_id="t", unit=unit, index=0)
            await store.start_rollout(rollout)
            outcome = Outcome.TIMEOUT if reward is None else Outcome.FINISHED
            value = None if reward is None else Reward(value=reward)
            await store.end_rollout(replace(rollout, ended_at=ended, outcome=outcome, reward=value))
        groups = read_groups(store, [4, 5, 7], per_group=4)
    assert [(group.group, group.domain, group.rewards(), group.others) for group in groups] == [
        (1, "code", [0.25], [1.0, 0.0]),
        (1, "code", [1.0], [0.0]),
        (1, "code", [0.0], [1.0]),
    ]
    row = make_batch(groups, TrainSettings(), version=0, vocabulary=VOCABULARY, context_length=CONTEXT).row
    assert (row["groups"], row["rollouts"]) == (1, 3)
