"""Where a chain comes from: ids before prefixes before text, each in the shape of an agent that needs it."""

from __future__ import annotations

from typing import Any

import pytest

from openforge.coordinator import Evidence, delivered, lineages, trajectories
from openforge.types import FinishReason, Fork, Speaker

MAIN, SUB = Speaker(session="s"), Speaker(session="s", agent="a")
TASK = "Look through the parser for the bug."
SUMMARY = "The parser is mended and the tests are green."


def say(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def found(calls: Any) -> list[tuple[str, str, str | None]]:
    return [(lineage.kind, " ".join(lineage.call_ids), lineage.of) for lineage in lineages(list(calls.values()))]


def test_a_named_sub_agent_belongs_to_the_call_whose_argument_is_its_task(calls: Any) -> None:
    calls.add("m1", speaker=MAIN, asks=[{"prompt": "Do something else entirely."}])
    calls.add("m2", "m1", speaker=MAIN, asks=[{"description": "bug hunt", "prompt": TASK}], started_at=1, ended_at=2)
    calls.add("m3", "m2", speaker=MAIN, started_at=9, ended_at=10)
    reminded = f"<system-reminder>\nBe good.\n</system-reminder>\n{TASK}"
    calls.add("s1", fork=Fork.ROOT, speaker=SUB, messages=[say("user", reminded)], started_at=3, ended_at=4)
    for n in range(2, 8):  # the longer thread is still not the main one
        calls.add(f"s{n}", f"s{n - 1}", speaker=SUB, started_at=n + 2, ended_at=n + 3)
    assert found(calls) == [("main", "m1 m2 m3", None), ("sub_agent", "s1 s2 s3 s4 s5 s6 s7", "m2")]
    assert [lineage.evidence for lineage in lineages(list(calls.values()))] == [Evidence.IDS, Evidence.IDS]


def test_a_sub_agent_without_names_is_known_by_its_task_however_long_it_works(calls: Any) -> None:
    """uni-agent#90 kept the longest trajectory as the agent's."""
    calls.add("m1", asks=[{"prompt": TASK}])
    calls.add("m2", "m1", started_at=9, ended_at=10)
    calls.add("s1", fork=Fork.ROOT, messages=[say("user", TASK)], started_at=1, ended_at=2)
    for n in range(2, 6):
        calls.add(f"s{n}", f"s{n - 1}")
    assert found(calls) == [("main", "m1 m2", None), ("sub_agent", "s1 s2 s3 s4 s5", "m1")]
    assert lineages(list(calls.values()))[1].evidence is Evidence.RULE


def test_nobody_is_started_by_a_call_that_came_later(calls: Any) -> None:
    """The agent notes its own task down: that makes nobody its sub-agent."""
    calls.add("a", messages=[say("user", TASK)], ended_at=1)
    calls.add("b", "a", asks=[{"todo": TASK}], started_at=2, ended_at=3)
    assert found(calls) == [("main", "a b", None)]


def test_parallel_sub_agents_with_the_same_start_are_kept_apart(calls: Any) -> None:
    """Two that fork from the main agent's own context, which by prefix alone would be branches of it."""
    calls.add("m1", speaker=MAIN)
    calls.add("m2", "m1", speaker=MAIN)
    for name in ("x", "y"):
        speaker = Speaker(session="s", agent=name)
        calls.add(f"{name}1", "m1", fork=Fork.BRANCH, speaker=speaker)
        calls.add(f"{name}2", f"{name}1", speaker=speaker)
        calls.add(f"{name}3", f"{name}2", speaker=speaker)
    assert found(calls) == [("main", "m1 m2", None), ("sub_agent", "x1 x2 x3", "m1"), ("sub_agent", "y1 y2 y3", "m1")]


def test_a_summary_written_inline_ends_its_thread_and_the_new_history_goes_on(calls: Any) -> None:
    """Codex: the same thread and a prompt for the summary, then a new history behind the messages it began with."""
    calls.add("a", messages=[say("system", "x"), say("user", "Mend it.")])
    calls.add("b", "a", says=SUMMARY, started_at=1, ended_at=2)
    summary = [say("user", f"What was done:\n{SUMMARY}")]
    calls.add("c", "a", shared=2, fork=Fork.EDITED, messages=summary, messages_shared=2, started_at=3, ended_at=4)
    calls.add("d", "c", started_at=5, ended_at=6)
    calls.add("e", "d", started_at=7, ended_at=8)
    assert found(calls) == [("main", "a b", None), ("continuation", "c d e", "b")]
    total = delivered(trajectories(list(calls.values())))
    assert (total.trained, total.masked) == (20, {})


def test_a_summary_written_aside_belongs_to_the_thread_it_serves(calls: Any) -> None:
    """Another system prompt and no tools, like a side call; its reply is what the agent remembers."""
    calls.add("a", messages=[say("user", "Mend it.")], says="I looked at the parser first, then at its tests.")
    history = [say("user", "Mend it."), say("assistant", "I looked at the parser first, then at its tests."), say("user", "Summarise.")]
    reply = f"<analysis>\nA thought that is dropped.\n</analysis>\n<summary>\n{SUMMARY}\n</summary>"
    calls.add("s", fork=Fork.ROOT, tools=False, messages=history, says=reply, started_at=1, ended_at=2)
    calls.add("b", fork=Fork.ROOT, messages=[say("user", f"Summary:\n{SUMMARY}")], started_at=3, ended_at=4)
    calls.add("c", "b", started_at=5, ended_at=6)
    assert found(calls) == [("main", "a", None), ("continuation", "b c", "s"), ("continuation", "s", "a")]
    assert lineages(list(calls.values()))[2].purpose == "compact"
    assert not delivered(trajectories(list(calls.values()))).masked


def test_a_title_copied_from_the_users_words_goes_nowhere(calls: Any) -> None:
    calls.add("t", tools=False, messages=[say("system", "Write a title."), say("user", "Mend the parser.")], says="Mend the parser.")
    calls.add("a", fork=Fork.ROOT, messages=[say("user", "Mend the parser.")], started_at=2, ended_at=3)
    assert found(calls) == [("main", "a", None), ("side", "t", None)]


def test_the_same_agent_with_tools_goes_on_where_it_left_off(calls: Any) -> None:
    """Nothing of the old text is left, but the ids are the same and what came before is over."""
    calls.add("a", speaker=MAIN)
    calls.add("b", "a", speaker=MAIN, started_at=1, ended_at=2)
    calls.add("c", fork=Fork.ROOT, speaker=MAIN, started_at=3, ended_at=4)
    assert found(calls) == [("main", "a b", None), ("continuation", "c", "b")]
    assert lineages(list(calls.values()))[1].evidence is Evidence.IDS


def test_other_tools_in_the_middle_of_a_history_are_no_other_agent(calls: Any) -> None:
    """NVIDIA-NeMo/RL PR#3063: a prompt that does not go on from the last must not be lost."""
    calls.add("a", messages=[say("user", "hi")], says="yes")
    history = [say("user", "hi"), say("assistant", "yes"), say("user", "more")]
    calls.add("b", fork=Fork.ROOT, messages=history, started_at=1, ended_at=2)
    calls.add("c", "b", started_at=3, ended_at=4)
    assert found(calls) == [("main", "a", None), ("continuation", "b c", "a")]


def test_a_first_reply_that_was_thrown_away_is_an_orphan(calls: Any) -> None:
    """mini-swe-agent drops a reply without a tool call and puts an error message in its place; miles PR#889 ended the session there."""
    calls.add("bad1")
    calls.add("bad2", "bad1", shared=2, fork=Fork.EDITED)
    calls.add("a", "bad2", shared=2, fork=Fork.EDITED)
    calls.add("b", "a")
    assert found(calls) == [("main", "a b", None), ("orphan", "bad1", None), ("orphan", "bad2", None)]
    assert delivered(trajectories(list(calls.values()))).trained == 16


@pytest.mark.parametrize(("purpose", "kind"), [("auxiliary", "side"), ("memory", "side"), ("compact", "continuation"), (None, "orphan")])
def test_a_branch_is_what_its_client_calls_it(calls: Any, purpose: str | None, kind: str) -> None:
    calls.add("a", speaker=MAIN)
    calls.add("b", "a", speaker=MAIN)
    calls.add("c", "b", speaker=MAIN)
    calls.add("x", "a", fork=Fork.BRANCH, speaker=Speaker(session="s", purpose=purpose))
    assert found(calls)[1] == (kind, "x", "a")


def test_a_count_of_tokens_is_a_side_call_and_no_main_agent(calls: Any) -> None:
    count = Speaker(purpose="count_tokens")
    calls.add("n", delta=0, sampled=0, tools=False, speaker=count)
    assert found(calls) == [("side", "n", None)]
    assert trajectories(list(calls.values())) == []
    calls.add("a", ended_at=5)
    assert found(calls) == [("main", "a", None), ("side", "n", None)]
    assert {lineage.purpose for lineage in lineages(list(calls.values()))} == {None, "count_tokens"}


def test_a_lost_retry_names_the_call_that_answered(calls: Any) -> None:
    first = calls.add("a", finish=FinishReason.ABORTED)
    calls.add("b", delta=first.delta, fork=Fork.RETRY, ended_at=2)
    calls.add("c", "b")
    assert found(calls) == [("main", "b c", None), ("retry", "a", "b")]


def test_calls_that_are_known_as_text_only_have_lineages_too(calls: Any) -> None:
    """An upstream API gives no tokens: messages are counted instead."""
    text = {"delta": 0, "sampled": 0}
    calls.add("a", **text, messages=[say("system", "x"), say("user", "hi")], says="one")
    calls.add("a2", "a", **text, shared=0, messages_shared=2, fork=Fork.RETRY, says="two")
    calls.add("b", "a", **text, shared=0, messages_shared=3, messages=[say("user", "more")], says="three")
    calls.add("c", "b", **text, shared=0, messages_shared=5, messages=[say("user", "on")])
    calls.add("x", "b", **text, shared=0, messages_shared=3, messages=[say("user", "edited")], fork=Fork.EDITED)
    calls.add("t", **text, tools=False, messages=[say("system", "A title, please.")], fork=Fork.ROOT)
    assert found(calls) == [
        ("main", "a b c", None),
        ("side", "t", None),
        ("retry", "a2", "a"),
        ("orphan", "x", "a"),
    ]
    assert trajectories(list(calls.values())) == []
