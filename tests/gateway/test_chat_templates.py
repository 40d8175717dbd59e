"""Formats against the models' own chat templates: byte-equal on any conversation, and the laws that splicing needs."""

from __future__ import annotations

import functools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.gateway.templates import templated

from openforge.gateway.formats import Format, load_format
from openforge.gateway.formats.fold import fold_systems
from openforge.gateway.formats.template import Template
from openforge.gateway.reply import Reply
from openforge.gateway.splice import Splicer
from openforge.gateway.text import encode, own_tokenizer
from openforge.gateway.turn import Message, Role, Tool, ToolCall
from openforge.types import UserError

CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>")
MINIMAX = ("]~!b[", "]~b]", "[e~[", "<think>", "</think>")
MODELS = {
    "minimax-m2": ("minimax_m2", MINIMAX),
    "minimax-m2.7": ("minimax_m2", MINIMAX),
    "qwen2.5": ("qwen3", CHATML),
    "qwen2.5-coder": ("qwen3", CHATML),
    "qwen3": ("qwen3", CHATML),
    "qwen3-thinking": ("qwen3", CHATML),
    "qwen3-instruct-2507": ("qwen3", CHATML),
    "qwen3-coder": ("qwen3_coder", CHATML),
    "qwen3.5": ("qwen3_5", CHATML),
    "qwen3.5-nothink": ("qwen3_5", CHATML),
    "qwen3.6": ("qwen3_5", CHATML),
    "qwen3.8": ("qwen3_5", CHATML),
}
FOLDING = ("minimax_m2", "qwen3_5")
"""Formats whose templates know system text at the head only."""
SILENT = ("qwen2.5", "qwen2.5-coder", "qwen3-instruct-2507", "qwen3-coder", "qwen3.5-nothink")
REASONING = [name for name in MODELS if name not in SILENT]


@functools.cache
def model(name: str) -> tuple[Format, Template]:
    format, special_tokens = MODELS[name]
    tokenizer = templated(name, special_tokens)
    return load_format(None, tokenizer), Template(tokenizer, format)


text = st.text(max_size=6) | st.sampled_from(["", "\n", " hi \n", "é👋", "a\r\nb", "{{ x }}", "<tool_response>x</tool_response>"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=5,
)
names = st.sampled_from(["run", "get_weather", "mcp__fs__read"])
arguments = st.dictionaries(st.sampled_from(["path", "n", "é"]), json_values, max_size=3)
tool_calls = st.builds(lambda name, args: ToolCall("id", name, json.dumps(args, ensure_ascii=False)), names, arguments)
schemas = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", ["integer", "null"]])},
    optional={"description": text, "enum": st.lists(json_values, max_size=2), "items": st.just({"type": "string"})},
)
parameters = st.just({}) | st.fixed_dictionaries(
    {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from(["path", "n", "é"]), schemas, max_size=2)},
    optional={"required": st.lists(st.just("path"), max_size=1), "additionalProperties": st.booleans()},
)
tools = st.lists(st.builds(Tool, names, text, parameters), max_size=2)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """A system message or none, a question, then rounds of replies, results and questions; system text may stand in the middle."""
    messages = [Message("system", draw(text))] if draw(st.booleans()) else []
    messages.append(Message("user", draw(st.text(min_size=1, max_size=6))))
    for _ in range(draw(st.integers(0, 3))):
        calls = tuple(draw(st.lists(tool_calls, max_size=2)))
        content = draw(text | st.sampled_from(["<think>\nold\n</think>\n\nnew", "a</think>b</think>\n"]))
        messages.append(Message("assistant", content, draw(text), calls))
        if draw(st.integers(0, 4)) == 0:
            messages.append(Message("system", draw(text)))
        messages += [Message("tool", draw(text)) for _ in calls]
        if not calls or draw(st.booleans()):
            messages.append(Message("user", draw(text)))
    return messages


@pytest.mark.parametrize("name", MODELS)
@given(messages=conversations(), offered=tools)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_prompt_is_the_chat_templates_own(name, messages, offered):
    format, template = model(name)
    assert format.name == MODELS[name][0]
    folded = fold_systems(messages, head=True) if format.name in FOLDING else messages
    assert format.prompt(messages, offered) == template.render(folded, offered, opening=True)


@pytest.mark.parametrize("name", MODELS)
@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_pieces_add_up_to_the_whole(name, data):
    """The prefix law, for what a model can sample: no white space that its template drops."""
    format, _ = model(name)
    before = data.draw(conversations().filter(lambda messages: messages[-1].role == "user"))
    offered = data.draw(tools)
    reasoning = data.draw(st.sampled_from(["why", "é\nso"])) if name in REASONING else ""
    calls = tuple(data.draw(st.lists(tool_calls, max_size=2)))
    reply = Message("assistant", data.draw(st.sampled_from(["", "Yes.", "é\n\nb"])), reasoning, calls)
    after = [Message("system", "now")] * data.draw(st.integers(0, 1)) + [Message("tool", data.draw(text)) for _ in calls or "x"]
    whole = format.prompt([*before, reply, *after], offered)
    pieces = [format.prompt(before, offered), format.reply(reply), format.continuation(after, offered, after=reply, closed=True)]
    assert "".join(pieces) == whole
    assert whole.endswith(format.opening(offered, after=after[-1]))
    end = own_tokenizer(templated(name, MODELS[name][1])).id_to_token(format.stop_token_ids[0])
    assert pieces[1].endswith(end)
    assert pieces[1].removesuffix(end) + format.continuation(after, offered, after=reply, closed=False) == "".join(pieces[1:])


@pytest.mark.parametrize("name", MODELS)
def test_pieces_are_tokens_of_the_whole(name):
    format, core = model(name)[0], own_tokenizer(templated(name, MODELS[name][1]))
    reply = Message("assistant", "Let me see.", "easy" if name in REASONING else "", (ToolCall("1", "run", '{"n": 1}'),))
    asked, result = [Message("system", "s"), Message("user", "u")], [Message("tool", "r")]
    pieces = [format.prompt(asked, ()), format.reply(reply), format.continuation(result, (), after=reply, closed=True)]
    assert [id for piece in pieces for id in encode(core, piece)] == encode(core, format.prompt([*asked, reply, *result], ()))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("called", [0, 1, 2])
def test_a_reply_is_read_as_it_is_written(name, called):
    """With reasoning, text and calls at once: nothing leaks from one into the other (QwenLM/Qwen3.8#26, dynamo#11554)."""
    format, _ = model(name)
    calls = tuple(ToolCall("", "run", json.dumps({"path": "    x\n", "n": n})) for n in range(called))
    offered = [Tool("run", "", {"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "integer"}}})]
    reply = Message("assistant", "So.", "why", calls)
    parser, read = format.parser(offered), Reply()
    sampled = format.reply(reply)
    read.add(parser.feed(sampled[: sampled.rindex("[e~[" if name.startswith("minimax") else "<|im_end|>")]))
    read.add(parser.finish())
    message = read.message()
    assert (message.content, message.reasoning) == ("So.", "why")
    assert [(call.name, call.arguments) for call in message.tool_calls] == [(call.name, call.arguments) for call in calls]


WHY, THEN = Message("assistant", "", "why", (ToolCall("1", "run", "{}"),)), Message("assistant", "so", "then")


@pytest.mark.parametrize("name", REASONING)
def test_reasoning_of_the_task_in_hand_is_kept_through_tool_results(name):
    """hermes-agent#75725, OpenHands#1152: interleaved reasoning is not stripped because it is unsigned, nor after the first round."""
    format, _ = model(name)
    rounds = [Message("user", "u"), WHY, Message("tool", "r"), WHY, Message("tool", "r\n\n<system-reminder>\nx\n</system-reminder>")]
    assert format.prompt(rounds, ()).count("why") == 2
    assert format.continuation(rounds[2:], (), after=WHY, closed=True).count("why") == 1


@pytest.mark.parametrize("name", [name for name in REASONING if name != "qwen3.8"])
def test_earlier_reasoning_is_dropped_where_a_prompt_is_rendered_anew_and_kept_in_pieces(name):
    """prime-rl#1334, verl#6719: the template drops it once the user has spoken; what is continued keeps what was sampled."""
    format, _ = model(name)
    asked, again = [Message("user", "u")], [Message("user", "again")]
    assert "then" not in format.prompt([*asked, THEN, *again], ())
    assert "then" in format.prompt(asked, ()) + format.reply(THEN) + format.continuation(again, (), after=THEN, closed=True)


@pytest.mark.parametrize("name", MODELS)
def test_a_conversation_goes_on_behind_its_stored_ids(name):
    """trl#5224, verl#3960, trl#6124: nothing sampled is rendered again, also when the client has lost the reasoning or the template would
    drop it."""
    format, core = model(name)[0], own_tokenizer(templated(name, MODELS[name][1]))
    splicer, asked = Splicer(format, core), [Message("user", "u")]
    reply = Message("assistant", "So.", "why" if name in REASONING else "", (ToolCall("1", "run", '{"n": 1}'),))
    first = splicer.plan(asked, ())
    splicer.begin(first)
    sampled = encode(core, format.reply(reply))
    splicer.commit(first, "a", sampled, reply)
    echo = Message("assistant", "So.", "", (ToolCall("other", "run", '{"n":1}'),))
    second = splicer.plan([*asked, echo, Message("tool", "r"), Message("user", "again")], ())
    assert second.fork is None
    stored = [*first.prompt_ids, *sampled]
    assert list(second.prompt_ids[: len(stored)]) == stored
    after = [Message("tool", "r"), Message("user", "again")]
    assert core.decode(second.prompt_ids[len(stored) :], skip_special_tokens=False) == format.continuation(
        after, (), after=echo, closed=True
    )


@pytest.mark.parametrize(
    ("roles", "folded"),
    [
        ("system user system", "system user+"),
        ("user system system assistant", "user++ assistant"),
        ("user assistant tool system", "user assistant tool+"),
        ("user assistant system tool tool", "user assistant tool+ tool"),
        ("user assistant system", "user assistant user:"),
        ("user assistant system assistant", "user assistant user: assistant"),
        ("system system user", "system user+"),
    ],
)
def test_system_text_in_the_middle_goes_where_a_template_renders_it(roles, folded):
    """sglang#28792, grok2api#598: accepted, and in order."""
    kinds: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
    reminder = "<system-reminder>\nbe good\n</system-reminder>"
    messages = [Message(kinds[role], "be good" if role == "system" and i else "x") for i, role in enumerate(roles.split())]
    found = fold_systems(messages, head=True)
    assert [message.role for message in found] == [role.strip("+:") for role in folded.split()]
    for message, role in zip(found, folded.split(), strict=True):
        own = [] if role.endswith(":") else ["x"]
        assert message.content == "\n\n".join(own + [reminder] * (role.count("+") + role.count(":")))
    format, _ = model("minimax-m2")
    assert format.prompt(messages, ()).count(reminder) == roles.split()[1:].count("system")


def test_arguments_that_a_client_mangled_are_shown_as_they_are():
    for name in ("minimax-m2", "qwen2.5", "qwen3-coder", "qwen3.5"):
        call = ToolCall("1", "run", "ls -l")
        assert "ls -l" in model(name)[0].prompt([Message("user", "u"), Message("assistant", "", "", (call,)), Message("tool", "r")], ())


def test_a_format_that_needs_the_models_template_says_so():
    tokenizer = templated("qwen3", CHATML)
    tokenizer.chat_template = None
    with pytest.raises(UserError, match="qwen3 is rendered as the model's own chat template says"):
        load_format("qwen3", tokenizer)
    with pytest.raises(UserError, match=r"minimax_m2 needs the tokens .* lacks"):
        load_format("minimax_m2", templated("qwen3", CHATML))


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("\\n<tool_response>\\n", "\\n<result>\\n", "looks like that of qwen3, but writes 'result>"),
        ("tool | tojson", "tool.function.name", "writes tools otherwise"),
    ],
)
def test_a_template_that_only_looks_like_a_formats_is_refused_unless_the_format_is_named(old, new, error):
    tokenizer = templated("qwen3", CHATML)
    assert old in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(old, new)
    with pytest.raises(UserError, match=error):
        load_format(None, tokenizer)


def test_a_format_can_be_named_against_the_template():
    tokenizer = templated("qwen3", CHATML)
    tokenizer.chat_template = tokenizer.chat_template.replace("\\n<tool_response>\\n", "\\n<result>\\n")
    assert load_format("qwen3", tokenizer).name == "qwen3"
    assert load_format("hermes", templated("qwen3", CHATML)).name == "hermes"
