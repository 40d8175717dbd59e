from __future__ import annotations

from typing import Any

from openforge.coordinator import lineages
from openforge.types import FinishReason, Fork


def _found(calls: Any) -> list[tuple[str, str]]:
    return [(lineage.kind, " ".join(lineage.call_ids)) for lineage in lineages(list(calls.values()))]


def test_no_calls_have_no_lineages() -> None:
    assert lineages([]) == []


def test_a_chain_of_extensions_is_the_main_lineage(calls: Any) -> None:
    calls.add("a")
    calls.add("b", "a")
    calls.add("c", "b")
    assert _found(calls) == [("main", "a b c")]


def test_a_retry_the_agent_did_not_go_on_with_is_set_aside(calls: Any) -> None:
    first = calls.add("a", ended_at=9.0)
    calls.add("b", delta=first.delta, fork=Fork.RETRY, ended_at=2.0)
    calls.add("c", "b")
    assert _found(calls) == [("main", "b c"), ("retry", "a")]


def test_a_retry_recorded_under_the_call_it_repeats_is_the_same(calls: Any) -> None:
    calls.add("p")
    calls.add("a", "p")
    calls.add("b", "a", shared=calls.prompt("a"), delta=[], fork=Fork.RETRY)
    calls.add("c", "b")
    assert _found(calls) == [("main", "p b c"), ("retry", "a")]


def test_of_retries_nothing_follows_the_last_complete_reply_counts(calls: Any) -> None:
    first = calls.add("a", ended_at=5.0)
    calls.add("b", delta=first.delta, fork=Fork.RETRY, ended_at=3.0)
    calls.add("c", delta=first.delta, fork=Fork.RETRY, ended_at=7.0, finish=FinishReason.ERROR)
    assert _found(calls) == [("main", "a"), ("retry", "b"), ("retry", "c")]


def test_replies_to_the_same_prompt_that_both_went_on_are_both_kept(calls: Any) -> None:
    first = calls.add("a")
    calls.add("b", delta=first.delta, fork=Fork.RETRY)
    calls.add("a1", "a")
    calls.add("a2", "a1")
    calls.add("b1", "b")
    assert _found(calls) == [("main", "a a1 a2"), ("sub_agent", "b b1")]


def test_a_failed_call_that_nothing_follows_is_an_orphan(calls: Any) -> None:
    calls.add("a")
    calls.add("b", "a")
    calls.add("c", "b", finish=FinishReason.ABORTED)
    assert _found(calls) == [("main", "a b"), ("orphan", "c")]


def test_an_aborted_call_the_agent_went_on_from_stays_in_its_chain(calls: Any) -> None:
    calls.add("a", finish=FinishReason.ABORTED)
    calls.add("b", "a")
    assert _found(calls) == [("main", "a b")]


def test_a_rollout_whose_calls_all_failed_has_no_main(calls: Any) -> None:
    first = calls.add("a", finish=FinishReason.ERROR, sampled=0, ended_at=1.0)
    calls.add("b", delta=first.delta, finish=FinishReason.ERROR, fork=Fork.RETRY, ended_at=2.0)
    assert _found(calls) == [("retry", "a"), ("orphan", "b")]


def test_a_failed_root_and_its_retry_that_answered(calls: Any) -> None:
    first = calls.add("z", finish=FinishReason.ERROR, sampled=0)
    calls.add("a", delta=first.delta, fork=Fork.RETRY)
    assert _found(calls) == [("main", "a"), ("retry", "z")]


def test_a_root_without_tools_beside_the_agents_work_is_a_side_call(calls: Any) -> None:
    calls.add("title", tools=False)
    calls.add("a", fork=Fork.ROOT)
    calls.add("b", "a")
    assert _found(calls) == [("main", "a b"), ("side", "title")]


def test_a_title_beside_a_single_call_with_tools_is_a_side_call(calls: Any) -> None:
    calls.add("title", tools=False, sampled=50)
    calls.add("a", fork=Fork.ROOT)
    assert _found(calls) == [("main", "a"), ("side", "title")]


def test_an_agent_without_tools_is_no_side_call(calls: Any) -> None:
    calls.add("a", tools=False)
    assert _found(calls) == [("main", "a")]


def test_a_lesser_root_with_tools_or_turns_is_a_sub_agent(calls: Any) -> None:
    calls.add("a")
    calls.add("b", "a")
    calls.add("c", "b")
    calls.add("s", fork=Fork.ROOT)
    calls.add("t", fork=Fork.ROOT, tools=False)
    calls.add("u", "t", tools=False)
    assert _found(calls) == [("main", "a b c"), ("sub_agent", "s"), ("sub_agent", "t u")]


def test_edited_history_is_a_continuation(calls: Any) -> None:
    calls.add("a")
    calls.add("b", "a")
    calls.add("c", "b", shared=2, fork=Fork.EDITED)
    calls.add("d", "c")
    calls.add("e", "d")
    assert _found(calls) == [("main", "a b"), ("continuation", "c d e")]


def test_the_heavier_branch_goes_on_whatever_came_first(calls: Any) -> None:
    calls.add("a")
    calls.add("b", "a")
    calls.add("x", "a", fork=Fork.BRANCH)
    calls.add("y", "x")
    assert _found(calls) == [("main", "a x y"), ("orphan", "b")]


def test_a_branch_with_turns_of_its_own_is_a_sub_agent(calls: Any) -> None:
    calls.add("a")
    for id, parent in (("b", "a"), ("c", "b"), ("d", "c"), ("x", "a"), ("y", "x")):
        calls.add(id, parent)
    assert _found(calls) == [("main", "a b c d"), ("sub_agent", "x y")]


def test_a_dropped_reply_leaves_an_orphan_and_the_agent_goes_on(calls: Any) -> None:
    """The agent throws a malformed reply away and asks again with an error message in its place."""
    calls.add("a")
    calls.add("bad", "a")
    calls.add("c", "bad", shared=calls.prompt("bad"), fork=Fork.EDITED)
    calls.add("d", "c")
    assert _found(calls) == [("main", "a c d"), ("orphan", "bad")]


def test_two_equal_roots_without_tools_are_not_told_apart_as_side_calls(calls: Any) -> None:
    calls.add("a", tools=False)
    calls.add("b", tools=False, fork=Fork.ROOT)
    assert _found(calls) == [("main", "b"), ("sub_agent", "a")]
