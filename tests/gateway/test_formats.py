"""The laws that every format keeps: the prefix law, what is rendered is parsed back, and the parser's laws.

A format is one entry of CASES. What is particular to one stands in its own test file; those that read a value's type off its tool's schema
(MiniMax M2, Qwen) are held to the same laws in test_chat_templates.py and test_tagged_parser.py.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.gateway.conftest import CHATML
from tests.gateway.templates import template
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from openforge.gateway.formats import load_format
from openforge.gateway.formats.base import Format
from openforge.gateway.reply import Reply
from openforge.gateway.text import encode, own_tokenizer
from openforge.gateway.turn import Message, Tool, ToolCall
from openforge.types import UserError

TOOLS = (
    Tool("add", "adds", {"type": "object", "properties": {"a": {"type": "integer"}}}),
    Tool("read_file", "reads é", {"type": "object"}),
)
NAMES = [tool.name for tool in TOOLS]


@dataclass(frozen=True, kw_only=True)
class Case:
    tokens: str
    """Special tokens, the end-of-turn token first."""
    marks: str
    """What the parser looks for."""
    template: str | None = None
    """Whose chat template the tokenizer has; None for none."""
    reasons: bool = False
    """Whether replies carry reasoning."""
    keeps: bool = True
    """Whether the template renders the reasoning of replies that no user message follows."""
    chosen: bool = True
    """Whether the template alone chooses it."""


DEEPSEEK = (
    "<｜end▁of▁sentence｜> <｜begin▁of▁sentence｜> <｜User｜> <｜Assistant｜> <think> </think> <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> "
    "<｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜>"
)
V31_MARKS = "<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> add"
V32_MARKS = (
    '<｜DSML｜function_calls> </｜DSML｜function_calls> <｜DSML｜invoke␣name="add"> </｜DSML｜invoke> </｜DSML｜parameter> '
    '<｜DSML｜parameter␣name="a"␣string="true"> <｜DSML｜parameter␣name="b"␣string="false">'
)
CASES = {
    "hermes": Case(tokens="<|im_end|> <|im_start|>", marks="<tool_call> </tool_call> <think> </think>", reasons=True),
    "llama3": Case(
        tokens="<|eot_id|> <|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eom_id|> <|end_of_text|> <|python_tag|>",
        marks='<|python_tag|> {"name":"add","parameters":{"a":1}} ;',
        template="llama-3.1",
    ),
    "deepseek_v31": Case(tokens=DEEPSEEK, marks=V31_MARKS, template="deepseek-v3.2-exp"),
    "deepseek_v31_thinking": Case(
        tokens=DEEPSEEK, marks=f"</think> {V31_MARKS}", template="deepseek-v3.2-exp", reasons=True, keeps=False, chosen=False
    ),
    "deepseek_v32": Case(tokens=f"{DEEPSEEK} ｜DSML｜", marks=V32_MARKS),
    "deepseek_v32_thinking": Case(tokens=f"{DEEPSEEK} ｜DSML｜", marks=f"</think> {V32_MARKS}", reasons=True, chosen=False),
}
every = pytest.mark.parametrize("name", CASES)


@functools.cache
def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    """A small tokenizer with merges, so that text cut at the wrong place encodes otherwise."""
    case = CASES[name]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = case.tokens.split()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(['user\n\nassistant\n\n<function_results>\n{"name": "add", "arguments": {"a": 1}}'] * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=special[0])
    tokenizer.chat_template = CHATML if name == "hermes" else case.template and template(case.template)
    tokenizer.bos_token = next((token for token in special if "begin" in token), None)
    return tokenizer


@functools.cache
def format_of(name: str) -> Format:
    return load_format(name, tokenizer_of(name))


def parse(format: Format, *pieces: str) -> Message:
    parser, reply = format.parser(TOOLS), Reply()
    for piece in pieces:
        reply.add(parser.feed(piece))
    reply.add(parser.finish())
    return reply.message()


def plain(message: Message) -> tuple[str, str, list[tuple[str, str]]]:
    return message.content, message.reasoning, [(call.name, call.arguments) for call in message.tool_calls]


def sampled(name: str, message: Message) -> str:
    """A reply without the token that ends it."""
    end = CASES[name].tokens.split()[0]
    text = format_of(name).reply(message)
    assert text.endswith(end)
    return text.removesuffix(end)


# --- conversations ----------------------------------------------------------------------------------------------------------------------

texts = st.text(alphabet='ab é👋{}[]"\\\n;', max_size=8).map(str.strip)
tricky = st.sampled_from(
    [mark.replace("␣", " ") for case in CASES.values() for mark in case.marks.split()]
    + ['"}', "{", "\\", "\n", " x ", "};{", "; ", "\n\n", "null", "1.0", '{"name": "add", "parameters": {}}', "<|im_end|>", "é👋"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts | tricky,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
arguments = st.dictionaries(st.text(alphabet="abcé_-.", min_size=1, max_size=4), values, max_size=3)
calls = st.builds(lambda name, value: ToolCall("", name, json.dumps(value, ensure_ascii=False)), st.sampled_from(NAMES), arguments)


@st.composite
def replies(draw: st.DrawFn, name: str) -> Message:
    reasoning = draw(texts) if CASES[name].reasons else ""
    return Message("assistant", draw(texts), reasoning, tuple(draw(st.lists(calls, max_size=2))))


def results(count: int) -> st.SearchStrategy[list[Message]]:
    return st.lists(texts.map(lambda text: Message("tool", text)), min_size=count, max_size=count)


@st.composite
def conversations(draw: st.DrawFn, name: str) -> list[Message]:
    """It ends with a user message or the results of all calls."""
    messages = [Message("system", draw(texts))] if draw(st.booleans()) else []
    messages.append(Message("user", draw(texts)))
    for _ in range(draw(st.integers(0, 2))):
        reply = draw(replies(name))
        rest = draw(results(len(reply.tool_calls))) if reply.tool_calls else [Message("user", draw(texts))]
        messages += [reply, *rest]
    return messages


def without_reasoning(text: str) -> str:
    """The text less all reasoning and its marks: what the template drops once a user has spoken again."""
    return re.sub(r"(<think>[^<]*)?</think>\n*", "", text)


@every
@given(data=st.data())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_pieces_add_up_to_the_whole_in_text_and_in_ids(name, data):
    format, core = format_of(name), own_tokenizer(tokenizer_of(name))
    before, reply = data.draw(conversations(name)), data.draw(replies(name))
    behind = data.draw(results(len(reply.tool_calls)))
    asked = data.draw(st.booleans()) or not behind
    behind += [Message("user", data.draw(texts))] if asked else []
    tools = data.draw(st.sampled_from([(), TOOLS]))
    pieces = [format.prompt(before, tools), format.reply(reply), format.continuation(behind, tools, after=reply, closed=True)]
    whole = format.prompt([*before, reply, *behind], tools)
    if asked or not CASES[name].keeps:
        assert without_reasoning("".join(pieces)) == without_reasoning(whole)
    else:
        assert "".join(pieces) == whole
    assert [id for piece in pieces for id in encode(core, piece)] == encode(core, "".join(pieces))
    truncated = [pieces[0], sampled(name, reply), format.continuation(behind, tools, after=reply, closed=False)]
    assert "".join(truncated) == "".join(pieces)


@every
@given(data=st.data())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_prompt_ends_with_its_opening_and_goes_on_in_its_place(name, data):
    format, core = format_of(name), own_tokenizer(tokenizer_of(name))
    before = data.draw(conversations(name))
    prompt, opening = format.prompt(before, TOOLS), format.opening(TOOLS, after=before[-1])
    assert prompt.endswith(opening)
    head = prompt.removesuffix(opening)
    more = [Message("user", data.draw(texts))]
    behind = format.continuation(more, TOOLS, after=before[-1], closed=True)
    assert without_reasoning(head + behind) == without_reasoning(format.prompt([*before, *more], TOOLS))
    ids = encode(core, prompt)
    assert ids[: len(ids) - len(encode(core, opening))] + encode(core, behind) == encode(core, head + behind)


@every
@given(data=st.data())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_prompt_with_system_text_in_the_middle_goes_on_behind_a_reply(name, data):
    format = format_of(name)
    before, reply = data.draw(conversations(name)), replace(data.draw(replies(name)), tool_calls=())
    behind = [Message("system", "Mind the gap."), Message("user", data.draw(texts))]
    pieces = format.prompt(before, TOOLS) + format.reply(reply) + format.continuation(behind, TOOLS, after=reply, closed=True)
    assert without_reasoning(pieces) == without_reasoning(format.prompt([*before, reply, *behind], TOOLS))
    assert "Mind the gap." in pieces


@every
@given(data=st.data())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_rendered_is_parsed_back(name, data):
    reply = data.draw(replies(name))
    found = parse(format_of(name), sampled(name, reply))
    assert (found.content, found.reasoning) == (reply.content, reply.reasoning)
    assert [call.name for call in found.tool_calls] == [call.name for call in reply.tool_calls]
    assert [json.loads(call.arguments) for call in found.tool_calls] == [json.loads(call.arguments) for call in reply.tool_calls]


def fragments(name: str) -> st.SearchStrategy[str]:
    junk = ['{"a": "b"}', '{"name": "add", "arguments": {}}', '{"name":', '"', "\\", "{", "}", "\n", " ", "x", "<", "</", "1"]
    marks = [mark.replace("␣", " ") for mark in CASES[name].marks.split()]
    return st.lists(st.sampled_from([*marks, *marks, *junk]), max_size=12).map("".join)


@every
@given(data=st.data())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_events_do_not_depend_on_how_the_text_was_cut(name, data):
    format = format_of(name)
    text = data.draw(fragments(name) | replies(name).map(lambda reply: sampled(name, reply)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert plain(parse(format, *pieces)) == plain(parse(format, text)) == plain(parse(format, *text))


@every
@given(data=st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_truncated_call_is_text_and_never_a_call(name, data):
    """Whatever was cut off: the calls found are the first ones of the whole reply, and the rest of the text is visible."""
    reply = replace(data.draw(replies(name)), reasoning="", tool_calls=tuple(data.draw(st.lists(calls, min_size=1, max_size=2))))
    text = sampled(name, reply)
    cut = data.draw(st.integers(0, len(text)))
    whole, found = plain(parse(format_of(name), text)), plain(parse(format_of(name), text[:cut]))
    assert found[2] == whole[2][: len(found[2])]
    if not found[2]:
        assert squeezed(found[1] + found[0]) == squeezed(text[:cut])
    shown = squeezed(found[0]).removeprefix(squeezed(whole[0])) if found[2] else ""
    assert squeezed(text[:cut]).endswith(shown)


def squeezed(text: str) -> str:
    """Without white space, which may only set calls apart, and without the end of reasoning."""
    return re.sub(r"\s|<think>|</think>", "", text)


@every
@given(data=st.data())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_visible_character_is_lost(name, data):
    """What is neither markup that was understood nor white space comes out again."""
    text = data.draw(fragments(name))
    message = parse(format_of(name), text)
    shown = message.content + message.reasoning + "".join(call.arguments for call in message.tool_calls)
    assert shown.count("x") >= text.count("x")


@every
def test_work_is_linear_in_the_text(name):
    """Counted, not timed: the lines run, and the text that is looked at again with every piece."""
    format = format_of(name)
    call = ToolCall("", "add", json.dumps({"a": 'x"}</' * 150, "b": [["y"] * 50] * 3}))
    texts = [sampled(name, Message("assistant", "a <b> " * 100 * size, "", (call,) * size)) for size in (1, 4)]
    for text in [*texts]:
        assert parse(format, *text).tool_calls
    small, large = (work(format, text) / len(text) for text in texts)
    assert large < 1.5 * small


def work(format: Format, text: str) -> int:
    parser, lines, held = format.parser(TOOLS), 0, 0

    def trace(frame, event, _):
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for char in text:
            parser.feed(char)
            held += held_text(parser)
        parser.finish()
    finally:
        sys.settrace(before)
    return lines + held


def held_text(value: object, depth: int = 3) -> int:
    """Characters in the strings of an object and of the objects in it. Lists do not count: what is in them waits to be joined once."""
    if isinstance(value, str):
        return len(value)
    if depth == 0 or not hasattr(value, "__dict__") or callable(value):
        return 0
    return sum(held_text(inner, depth - 1) for inner in vars(value).values())


@every
def test_format_is_chosen_by_the_chat_template_and_by_name(name):
    tokenizer, case = tokenizer_of(name), CASES[name]
    assert load_format(name, tokenizer).name == name
    if case.chosen:
        assert load_format(None, tokenizer).name == name
    format = format_of(name)
    assert tokenizer.convert_ids_to_tokens(format.stop_token_ids[0]) == case.tokens.split()[0]
    assert format.closing_token_ids <= set(format.stop_token_ids)


@every
def test_tokenizer_that_lacks_a_token_is_a_user_error(name):
    class Bare:
        chat_template = "x"

        def get_vocab(self) -> dict[str, int]:
            return {"a": 0}

    with pytest.raises(UserError, match=r"model\.format: .* needs the tokens .* lacks "):
        load_format(name, Bare())


UNREADABLE = {
    "a lone surrogate": '"\\ud800"',
    "a lone surrogate for a key": '{"\\udc00": 1}',
    "no finite number": "1e999",
    "a depth no client reads": "[" * 300 + "]" * 300,
}
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "add", "arguments": {"a": %s}}\n</tool_call>',
    "llama3": '{"name": "add", "parameters": {"a": %s}}',
    "deepseek_v31": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": %s}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
}


@pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("name", WRITTEN)
def test_call_whose_arguments_some_client_could_not_read_stays_text(name, value):
    assert parse(format_of(name), WRITTEN[name] % '"\\ud83d\\udc4b"').tool_calls
    text = WRITTEN[name] % value
    assert plain(parse(format_of(name), text)) == (text, "", [])
