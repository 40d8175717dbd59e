"""The prefix law over random histories, and the reason of every fork."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openforge.gateway.formats import load_format
from openforge.gateway.splice import Plan, Splicer
from openforge.gateway.text import encode, own_tokenizer
from openforge.gateway.turn import Message, Tool, ToolCall
from openforge.types import Fork

TOOLS = (Tool("add", "adds", {"type": "object"}),)
SYSTEM, HELLO = Message("system", "Be good."), Message("user", "hello")


@dataclass
class Recorded:
    plan: Plan
    call_id: str
    sampled: list[int]
    history: list[Message]
    """The messages as the model saw and wrote them, this call's reply last."""

    @property
    def ids(self) -> list[int]:
        return self.plan.prompt_ids.tolist() + self.sampled


class Rollout:
    """A rollout that keeps the log's view beside the splicer's."""

    def __init__(self, tokenizer) -> None:
        self.format = load_format("hermes", tokenizer)
        self.tokenizer = own_tokenizer(tokenizer)
        self.splicer = Splicer(self.format, self.tokenizer)
        self.calls: list[Recorded] = []

    def call(self, messages, reply, *, tools=TOOLS, closed=True, ids=None) -> Recorded:
        """`messages` as the client posts them, `reply` what the model says now."""
        plan = self.splicer.plan(messages, tools)
        self.splicer.begin(plan)
        call_id = f"c{len(self.calls)}"
        sampled = ids if ids is not None else encode(self.tokenizer, self.format.reply(reply))
        sampled = sampled if closed else sampled[:-1]
        self.splicer.commit(plan, call_id, sampled, reply)
        parent = next((other.history for other in self.calls if plan.parent and other.call_id == plan.parent.id), [])
        call = Recorded(plan, call_id, sampled, [*parent[: plan.messages_shared], *plan.messages, reply])
        self.check(call)
        self.calls.append(call)
        return call

    def check(self, call: Recorded) -> None:
        plan = call.plan
        if plan.parent is None:
            assert (plan.shared, plan.messages_shared) == (0, 0)
            assert plan.fork == (Fork.ROOT if self.calls else None) or plan.fork == Fork.RETRY
        else:
            parent = next(other for other in self.calls if other.call_id == plan.parent.id)
            assert plan.prompt_ids.tolist() == parent.ids[: plan.shared] + plan.delta.tolist()
            if plan.fork is None:
                assert plan.prompt_ids[: len(parent.ids)].tolist() == parent.ids
                assert not any(o.plan.fork is None and o.plan.parent is plan.parent for o in self.calls)

    def text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False)


@pytest.fixture
def rollout(tokenizer):
    return Rollout(tokenizer)


def user(text: str) -> Message:
    return Message("user", text)


def says(text: str = "", *arguments: str) -> Message:
    return Message("assistant", text, tool_calls=tuple(ToolCall(f"id{i}", "add", a) for i, a in enumerate(arguments)))


def test_linear_history_extends_without_a_fork(rollout):
    one = rollout.call([SYSTEM, HELLO], says("hi"))
    two = rollout.call([SYSTEM, HELLO, says("hi"), user("more")], says("ok"))
    assert (one.plan.parent, one.plan.fork) == (None, None)
    assert (two.plan.parent.id, two.plan.fork, two.plan.messages_shared) == ("c0", None, 3)
    assert rollout.text(two.plan.delta.tolist()) == "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"


def test_reply_cut_by_length_is_closed_by_the_next_prompt(rollout):
    rollout.call([HELLO], says("hi the"), closed=False)
    two = rollout.call([HELLO, says("hi the"), user("go on")], says("re"))
    assert two.plan.fork is None
    assert rollout.text(two.plan.delta.tolist()).startswith("<|im_end|>\n<|im_start|>user\n")


def test_sampled_ids_survive_although_their_text_tokenises_otherwise(rollout):
    letters = [id for char in "hello" for id in encode(rollout.tokenizer, char)]
    assert letters != encode(rollout.tokenizer, "hello")
    end = rollout.format.stop_token_ids[0]
    rollout.call([HELLO], says("hello"), ids=[*letters, end])
    two = rollout.call([HELLO, says("hello"), user("x")], says("y"))
    assert two.plan.fork is None
    assert two.plan.prompt_ids.tolist()[: two.plan.shared][-6:] == [*letters, end]


def test_second_extension_of_a_call_is_a_branch(rollout):
    rollout.call([HELLO], says("hi"))
    rollout.call([HELLO, says("hi"), user("a")], says("x"))
    branch = rollout.call([HELLO, says("hi"), user("b")], says("y"))
    assert (branch.plan.parent.id, branch.plan.fork) == ("c0", Fork.BRANCH)


def test_same_prompt_is_a_retry_and_stores_nothing_again(rollout):
    one = rollout.call([HELLO], says("hi"))
    again = rollout.call([HELLO], says("hey"))
    assert (again.plan.parent.id, again.plan.fork, again.plan.delta.tolist()) == ("c0", Fork.RETRY, [])
    assert again.plan.prompt_ids == one.plan.prompt_ids
    follow = rollout.call([HELLO, says("hey"), user("x")], says("y"))
    assert (follow.plan.parent.id, follow.plan.fork) == ("c1", None)


def test_same_prompt_while_the_first_is_in_flight_is_a_retry(rollout):
    first = rollout.splicer.plan([HELLO], ())
    rollout.splicer.begin(first)
    twin = rollout.splicer.plan([HELLO], ())
    assert (twin.parent, twin.fork, twin.prompt_ids) == (None, Fork.RETRY, first.prompt_ids)
    rollout.splicer.begin(twin)
    rollout.splicer.commit(twin, "b", [5], says("b"))
    rollout.splicer.commit(first, "a", [6], says("a"))
    assert rollout.splicer.plan([HELLO, says("a"), user("x")], ()).parent.id == "a"


def test_call_that_came_to_nothing_leaves_its_parent_free(rollout):
    rollout.call([HELLO], says("hi"))
    plan = rollout.splicer.plan([HELLO, says("hi"), user("a")], TOOLS)
    rollout.splicer.begin(plan)
    rollout.splicer.forget(plan)
    assert rollout.call([HELLO, says("hi"), user("b")], says("x")).plan.fork is None


def test_dropped_reply_is_an_edit_behind_the_same_messages(rollout):
    one = rollout.call([SYSTEM, HELLO], says("gibberish"))
    two = rollout.call([SYSTEM, HELLO, user("call a tool!")], says("ok"))
    assert (two.plan.parent.id, two.plan.fork, two.plan.messages_shared) == ("c0", Fork.EDITED, 2)
    assert two.plan.prompt_ids.tolist() == encode(rollout.tokenizer, rollout.format.prompt([SYSTEM, HELLO, user("call a tool!")], TOOLS))
    assert rollout.text(one.plan.prompt_ids.tolist()[two.plan.shared :]) == "\n<|im_start|>assistant\n"


def test_edited_reply_is_an_edit(rollout):
    rollout.call([HELLO], says("hi"))
    two = rollout.call([HELLO, says("HI!"), user("x")], says("y"))
    assert (two.plan.parent.id, two.plan.fork, two.plan.messages_shared) == ("c0", Fork.EDITED, 1)


def test_rewritten_later_reply_is_an_edit_though_an_older_call_is_whole(rollout):
    rollout.call([HELLO], says("hi"))
    rollout.call([HELLO, says("hi"), user("a")], says("x"))
    three = rollout.call([HELLO, says("hi"), user("A"), says("X"), user("b")], says("y"))
    assert (three.plan.parent.id, three.plan.fork) == ("c0", Fork.EDITED)


def test_other_conversation_or_other_tools_is_a_root(rollout):
    rollout.call([SYSTEM, HELLO], says("hi"))
    assert rollout.call([user("Title?")], says("t")).plan.fork == Fork.ROOT
    assert rollout.call([SYSTEM, HELLO, says("hi"), user("x")], says("y"), tools=()).plan.fork == Fork.ROOT


def test_tool_result_added_to_a_posted_run_does_not_split_the_run(rollout):
    reply = says("", "{}", "{}")
    one, two = Message("tool", "1"), Message("tool", "2")
    rollout.call([HELLO], reply)
    rollout.call([HELLO, reply, one], says("wait"))
    three = rollout.call([HELLO, reply, one, two], says("done"))
    assert (three.plan.parent.id, three.plan.fork) == ("c0", Fork.BRANCH)
    assert three.plan.prompt_ids.tolist() == encode(rollout.tokenizer, rollout.format.prompt([HELLO, reply, one, two], TOOLS))


def test_reply_is_recognised_however_the_client_echoes_it(rollout):
    reply = replace(says("Sure.", '{"a": 1.0, "b": [true, null]}'), reasoning="think")
    rollout.call([HELLO], reply)
    for i, echo in enumerate(
        (
            replace(reply, reasoning=""),
            replace(reply, content=" Sure.\n"),
            says("Sure.", '{"b":[true,null],"a":1}'),
            replace(reply, tool_calls=(replace(reply.tool_calls[0], id="renamed"),)),
        )
    ):
        plan = rollout.call([HELLO, echo, Message("tool", str(i))], says("x")).plan
        assert (plan.parent.id, plan.messages_shared) == ("c0", 2)
    assert rollout.call([HELLO, says("Sure.", '{"a": 1, "b": [1, null]}'), user("x")], says("y")).plan.messages_shared == 1


def test_of_two_equal_replies_the_one_whose_ids_come_back_is_continued(rollout):
    rollout.call([HELLO], Message("assistant", tool_calls=(ToolCall("first", "add", "{}"),)))
    rollout.call([HELLO], Message("assistant", tool_calls=(ToolCall("second", "add", "{}"),)))
    echo = Message("assistant", tool_calls=(ToolCall("first", "add", "{}"),))
    assert rollout.splicer.plan([HELLO, echo, Message("tool", "1")], TOOLS).parent.id == "c0"
    unknown = Message("assistant", tool_calls=(ToolCall("other", "add", "{}"),))
    assert rollout.splicer.plan([HELLO, unknown, Message("tool", "1")], TOOLS).parent.id == "c1"


def test_memory_of_a_session_is_linear_in_new_tokens(rollout):
    messages = [HELLO]
    for i in range(50):
        call = rollout.call(messages, says(f"reply {i}"))
        messages = [*messages, says(f"reply {i}"), user(f"next {i}")]
    stored = sum(len(call.plan.delta) + len(call.sampled) for call in rollout.calls)
    assert stored == len(call.ids)


# --- random histories -------------------------------------------------------------------------------------------------------------------

words = st.text(alphabet='ab é👋{}"\\\n<>', max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words, st.lists, max_leaves=3
)
arguments = st.dictionaries(words, values, max_size=3)


ids = itertools.count()
"""The gateway never gives an id twice."""


@st.composite
def replies(draw: st.DrawFn) -> Message:
    text = draw(words.map(str.strip))
    calls = tuple(ToolCall(f"id{next(ids)}", "add", json.dumps(a)) for a in draw(st.lists(arguments, max_size=2)))
    return Message("assistant", text, reasoning=draw(st.sampled_from(["", "hm"])), tool_calls=calls)


@st.composite
def echoes(draw: st.DrawFn, reply: Message) -> Message:
    """A reply as one of many clients sends it back."""
    calls = []
    for call in reply.tool_calls:
        value = json.loads(call.arguments)
        keys = draw(st.permutations(list(value)))
        text = json.dumps({key: value[key] for key in keys}, separators=draw(st.sampled_from([(",", ":"), (", ", ": ")])))
        calls.append(ToolCall(draw(st.sampled_from([call.id, "new"])), call.name, text))
    return Message("assistant", reply.content, draw(st.sampled_from([reply.reasoning, f" {reply.reasoning}\n", "", "mine"])), tuple(calls))


others = st.builds(Message, st.sampled_from(["user", "tool", "system"]), words)


@pytest.mark.parametrize("exact", [True, False])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_prefix_law_over_random_histories(tiny_tokenizer, exact, data):
    """`exact`: the model writes as the format renders, so that the prompt must equal the whole history rendered and tokenised at once.
    Otherwise it samples ids that no tokeniser would choose, which must all survive."""
    draw = data.draw
    rollout = Rollout(tiny_tokenizer)
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["fresh", "linear", "linear", "linear", "retry", "drop_reply", "edit", "drop", "insert"]))
        base = draw(st.sampled_from(rollout.calls)) if rollout.calls else None
        new = draw(st.lists(others, min_size=1, max_size=3))
        if base is None or kind == "fresh":
            posted = [new[0], *new]
        else:
            posted = [draw(echoes(m)) if m.role == "assistant" else m for m in base.history]
            at = draw(st.integers(0, len(posted) - 1))
            match kind:
                case "retry" | "drop_reply":
                    posted.pop()
                case "edit":
                    posted[at] = replace(posted[at], content=posted[at].content + "!")
                case "drop":
                    del posted[at]
                case "insert":
                    posted.insert(at, new[0])
            if kind != "retry":
                posted += new
        reply = draw(replies())
        ids = None if exact else [*draw(st.lists(st.integers(3, 500), max_size=5)), rollout.format.stop_token_ids[0]]
        call = rollout.call(posted, reply, closed=draw(st.booleans()), ids=ids)
        history = call.history[:-1]
        assert [canonical(m) for m in history] == [canonical(m) for m in posted]
        for message, own in zip(history, posted, strict=True):
            assert not own.reasoning.strip() or message.reasoning.split() == own.reasoning.split()
        if exact:
            assert call.plan.prompt_ids.tolist() == encode(rollout.tokenizer, rollout.format.prompt(history, TOOLS))


def canonical(message: Message) -> object:
    calls = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
    return message.role, message.content.strip() if message.role == "assistant" else message.content, calls
