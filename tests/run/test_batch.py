"""What the metrics say about a batch's calls."""

from __future__ import annotations

from openforge.engines.training import TrainSettings
from openforge.run.batch import Group, make_batch
from openforge.types import Call, FinishReason, Outcome, Reward, Rollout, Sampling


def _call(id: str, **request: object) -> Call:
    return Call(
        id=id,
        rollout_id="r",
        index=0,
        parent_id=None,
        shared=0,
        delta=[1, 2],
        sampled=[3],
        logprobs=[-1.0],
        versions=[0],
        finish=FinishReason.STOP,
        sampling=Sampling(),
        dialect="chat",
        request={"messages": [], **request},
        response={},
        started_at=0.0,
        ended_at=1.0,
    )


def test_prefixes_won_back_are_summed_over_the_calls() -> None:
    rollout = Rollout(id="r", task_id="t", unit=0, index=0, outcome=Outcome.FINISHED, reward=Reward(value=1.0))
    calls = [_call("a"), _call("b", normalised={"removed": [], "prefix_won": 40}), _call("c", normalised={"removed": [], "prefix_won": 2})]
    batch = make_batch([Group(unit=0, members=[(rollout, calls)])], TrainSettings(), version=0, vocabulary=8, context_length=8)
    assert batch.row["prefix_won"] == 42
