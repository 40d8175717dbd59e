"""The Messages stream: its grammar, and that the official SDK adds it up to the plain reply."""

from __future__ import annotations

import json
import uuid

import anthropic
import httpx2
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from openforge.gateway.body import json_response
from openforge.gateway.dialects.base import ApiError, ReplyHead
from openforge.gateway.dialects.messages import Messages
from openforge.gateway.reply import End, ReasoningDelta, Reply, TextDelta, ToolCallDelta, Usage
from openforge.gateway.text import encode
from openforge.gateway.turn import Message, Turn
from openforge.types import FinishReason

ASK = [{"role": "user", "content": "hello"}]
TURN = Turn(messages=(Message("user", "hello"),), model="m", stop=("END",))
HEAD = ReplyHead(id="00ff" * 8, model="tiny", usage=Usage(prompt_tokens=9, cached_tokens=4))
USAGE = Usage(prompt_tokens=9, cached_tokens=4, sampled_tokens=5, reasoning_tokens=2)
DELTAS = {"text": {"text_delta"}, "thinking": {"thinking_delta", "signature_delta"}, "tool_use": {"input_json_delta"}}


def written(events, end, *, pings=()) -> bytes:
    writer = Messages().writer(HEAD, TURN)
    pieces = [writer.open()]
    for i, event in enumerate(events):
        pieces += [writer.ping()] if i in pings else []
        pieces.append(writer.delta(event))
    return b"".join([*pieces, writer.close(end)])


def read_stream(raw: bytes) -> list[dict]:
    """The events of a stream, each checked against the grammar of Anthropic's streams."""
    events = []
    for piece in raw.decode().split("\n\n")[:-1]:
        name, data = piece.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    rest = [event for event in events if event["type"] != "ping"]
    assert [rest[0]["type"], rest[-2]["type"], rest[-1]["type"]] == ["message_start", "message_delta", "message_stop"]
    open, started = None, 0
    for event in rest[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert open is None
                assert event["index"] == started
                open, started = event["content_block"]["type"], started + 1
            case "content_block_delta":
                assert event["index"] == started - 1
                assert event["delta"]["type"] in DELTAS[open]
            case "content_block_stop":
                assert event["index"] == started - 1
                assert open is not None
                open = None
            case other:
                raise AssertionError(other)
    assert open is None
    return events


def of_type(events, type):
    return [event for event in events if event["type"] == type]


class Canned:
    """The unmodified SDK on a server that answers with given bytes, cut anywhere."""

    def __init__(self) -> None:
        self.answer = httpx2.Response(500)
        http = httpx2.Client(transport=httpx2.MockTransport(lambda request: self.answer))
        self.client = anthropic.Anthropic(base_url="http://canned", api_key="x", max_retries=0, http_client=http)

    def streamed(self, pieces: list[bytes]) -> dict:
        self.answer = httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=iter(pieces))
        with self.client.messages.stream(model="m", max_tokens=9, messages=ASK) as stream:
            return same(stream.get_final_message())

    def plain(self, body: bytes) -> dict:
        self.answer = httpx2.Response(200, headers={"content-type": "application/json"}, content=body)
        return same(self.client.messages.create(model="m", max_tokens=9, messages=ASK))


def same(message: anthropic.types.Message) -> dict:
    row = message.model_dump()
    for block in row["content"]:
        block.pop("parsed_output", None)  # only the stream helper's blocks have one
    del row["usage"]["cache_creation"]  # no stream can change it after its start
    return row


CANNED = Canned()
FINISHES = st.sampled_from(
    [(FinishReason.STOP, None), (FinishReason.LENGTH, None), (FinishReason.STOP, "END"), (FinishReason.STOP, "run's")]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def cuts(draw, whole):
    at = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    return [whole[a:b] for a, b in zip([0, *at], [*at, len(whole)], strict=True)]


@st.composite
def reply_events(draw):
    events, calls = [], 0
    for kind in draw(st.lists(st.sampled_from([TextDelta, ReasoningDelta, ToolCallDelta]), max_size=6)):
        if kind is ToolCallDelta:
            arguments = json.dumps(draw(st.dictionaries(st.text(), JSON, max_size=3)), ensure_ascii=draw(st.booleans()))
            first, *more = draw(cuts(arguments))
            events.append(ToolCallDelta(calls, f"call_{calls}", draw(st.text(min_size=1)), first))
            events += [ToolCallDelta(calls, None, None, piece) for piece in more]
            calls += 1
        else:
            events += [kind(text) for text in draw(st.lists(st.text(min_size=1), min_size=1, max_size=3))]
    return events


@settings(max_examples=30, deadline=None)
@given(events=reply_events(), finish=FINISHES, data=st.data())
def test_stream_adds_up_to_the_plain_reply_in_the_sdk(events, finish, data):
    end = End(finish=finish[0], usage=USAGE, stop=finish[1])
    raw = written(events, end, pings=data.draw(st.sets(st.integers(0, 5), max_size=2)))
    read_stream(raw)
    reply = Reply()
    reply.add(events)
    plain = CANNED.plain(json_response(Messages().whole(HEAD, TURN, reply, end)).body)
    assert CANNED.streamed(data.draw(cuts(raw))) == plain
    for kind, field in (("text", "content"), ("thinking", "reasoning")):
        assert "".join(block[kind] for block in plain["content"] if block["type"] == kind) == getattr(reply.message(), field)
    inputs = [block["input"] for block in plain["content"] if block["type"] == "tool_use"]
    assert inputs == [json.loads(call.arguments) for call in reply.message().tool_calls]


CALL = '{"name": "add", "arguments": '
PIECES = ["<think>", "</think>", "\n", "<tool_call>", "</tool_call>", CALL, '{"a": [1, "é"]}', "{}", "}", "hm", " "]


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(PIECES) | st.lists(st.integers(3, 590), max_size=4), max_size=14), st.integers(1, 40))
@example(["<tool_call>", CALL, "{}", "}", "</tool_call>", "\n", "hm"], 40)
async def test_any_sampled_tokens_stream_and_answer_the_same(house, pieces, limit):
    client = await house.anthropic(uuid.uuid4().hex)
    tokens = [id for piece in pieces for id in ([*piece] if isinstance(piece, list) else encode(house.engine.tokenizer, piece))]
    house.say(ids=tokens)
    house.say(ids=tokens)
    async with client.messages.stream(model="m", max_tokens=limit, messages=ASK) as stream:
        streamed = same(await stream.get_final_message())
    plain = same(await client.messages.create(model="m", max_tokens=limit, messages=ASK))
    for row in (streamed, plain):
        del row["id"], row["usage"]["input_tokens"], row["usage"]["cache_read_input_tokens"]  # the second call reads the first one's cache
        for i, block in enumerate(row["content"]):
            block.update({key: i for key in ("id", "signature") if key in block})
    assert streamed == plain


# --- what went wrong elsewhere ------------------------------------------------------------------------------------------------------------

THINK = [ReasoningDelta("h"), ReasoningDelta("m")]
TEXT = [TextDelta("So"), TextDelta(".")]
CALLS = [ToolCallDelta(0, "call_0", "add", '{"a"'), ToolCallDelta(0, None, None, ": 1}"), ToolCallDelta(1, "call_1", "now", "{}")]
STOP = End(finish=FinishReason.STOP, usage=USAGE)


def test_blocks_start_stop_and_are_numbered_in_turn():
    """litellm#13373, #14315, #5231: deltas of blocks that are not open, indices of another protocol."""
    events = read_stream(written([*THINK, *TEXT, *CALLS], STOP))
    starts = of_type(events, "content_block_start")
    assert [(event["index"], event["content_block"]["type"]) for event in starts] == [
        (0, "thinking"),
        (1, "text"),
        (2, "tool_use"),
        (3, "tool_use"),
    ]
    assert [event["index"] for event in of_type(events, "content_block_stop")] == [0, 1, 2, 3]


def test_blocks_change_when_the_kind_of_text_does():
    """litellm#32357, #33224: thoughts in a text block."""
    events = read_stream(written([*TEXT, *THINK, *TEXT], STOP))
    assert [event["content_block"]["type"] for event in of_type(events, "content_block_start")] == ["text", "thinking", "text"]


def test_message_starts_once_with_complete_usage():
    """litellm#24176, #32357: Claude Code cannot read a stream whose message_start lacks a count."""
    [start] = of_type(read_stream(written(TEXT, STOP)), "message_start")
    message = start["message"]
    assert {"input_tokens": 5, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0, "output_tokens": 0}.items() <= message[
        "usage"
    ].items()
    assert (message["type"], message["role"], message["content"], message["stop_reason"]) == ("message", "assistant", [], None)
    assert message["id"].startswith("msg_")


def test_argument_deltas_add_up_and_an_input_is_empty_only_without_arguments():
    """litellm#25321, #29491: lost fragments, inputs closed as {}."""
    events = read_stream(written(CALLS, STOP))
    inputs = {0: "", 1: ""}
    for event in of_type(events, "content_block_delta"):
        inputs[event["index"]] += event["delta"]["partial_json"]
    assert inputs == {0: '{"a": 1}', 1: "{}"}


def test_text_alone_has_no_argument_deltas():
    """litellm#29286."""
    kinds = [event["delta"]["type"] for event in of_type(read_stream(written(TEXT, STOP)), "content_block_delta")]
    assert kinds == ["text_delta", "text_delta"]


def test_thinking_is_signed_before_its_block_ends():
    """claude-code#20698: a thinking block without signature is refused when it comes back."""
    events = read_stream(written([*THINK, *TEXT], STOP))
    kinds = [event["delta"]["type"] for event in of_type(events, "content_block_delta") if event["index"] == 0]
    assert kinds == ["thinking_delta", "thinking_delta", "signature_delta"]


@pytest.mark.parametrize(
    ("events", "end", "reason", "sequence"),
    [
        (TEXT, STOP, "end_turn", None),
        ([*TEXT, *CALLS], STOP, "tool_use", None),
        ([*TEXT, *CALLS], End(finish=FinishReason.LENGTH, usage=USAGE), "max_tokens", None),
        (TEXT, End(finish=FinishReason.STOP, usage=USAGE, stop="END"), "stop_sequence", "END"),
        (TEXT, End(finish=FinishReason.STOP, usage=USAGE, stop="the run's own"), "end_turn", None),
        ([], STOP, "end_turn", None),
    ],
)
def test_stop_reason_says_why_and_which(events, end, reason, sequence):
    [last] = of_type(read_stream(written(events, end)), "message_delta")
    assert last["delta"] == {"stop_reason": reason, "stop_sequence": sequence}
    assert last["usage"]["output_tokens"] == 5


def test_failed_stream_ends_in_an_error_event_and_never_in_message_stop():
    """teamclaude#154."""
    writer = Messages().writer(HEAD, TURN)
    raw = writer.open() + writer.delta(TEXT[0]) + writer.fail(ApiError(500, "the engine failed", type="server_error"))
    assert b"message_stop" not in raw
    assert raw.endswith(b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"the engine failed"}}\n\n')
    with pytest.raises(anthropic.APIStatusError, match="the engine failed"):
        CANNED.streamed([raw])


@pytest.mark.parametrize(
    ("status", "type"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "api_error"),
        (529, "overloaded_error"),
    ],
)
def test_errors_have_anthropics_types(status, type):
    assert Messages().error(ApiError(status, "no", type="server_error")) == {"type": "error", "error": {"type": type, "message": "no"}}


def test_arguments_an_upstream_api_cut_short_are_an_empty_input():
    reply = Reply()
    reply.add([ToolCallDelta(0, "call_0", "add", '{"a": ')])
    assert Messages().whole(HEAD, TURN, reply, STOP)["content"][0]["input"] == {}
