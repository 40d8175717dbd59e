"""The Responses API's stream as the `openai` SDK accumulates it, for any reply and however it is cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import get_args

import httpx
import msgspec
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent

from openforge.gateway.dialects.base import ApiError, ReplyHead
from openforge.gateway.dialects.responses import Responses
from openforge.gateway.dialects.responses_read import read_turn
from openforge.gateway.formats.hermes_parser import HermesParser
from openforge.gateway.reply import End, ReasoningDelta, Reply, ReplyEvent, TextDelta, ToolCallDelta, Usage
from openforge.gateway.turn import Message, canonical_arguments
from openforge.types import FinishReason

TERMINAL = ("response.completed", "response.incomplete", "response.failed")
HEAD = ReplyHead(id="0123456789abcdef" * 2, model="tiny", usage=Usage(prompt_tokens=3), created=1.0)
USAGE = Usage(prompt_tokens=7, cached_tokens=4, sampled_tokens=9, reasoning_tokens=2)
TOOLS = [
    {"type": "function", "name": "add", "parameters": {"type": "object"}},
    {"type": "custom", "name": "patch"},
    {
        "type": "namespace",
        "name": "crm",
        "description": "",
        "tools": [{"type": "function", "name": "find"}, {"type": "custom", "name": "sql"}],
    },
]
BODY = {"model": "m", "input": "hello", "tools": TOOLS, "include": ["reasoning.encrypted_content"]}
EVENTS = {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(ResponseStreamEvent)[0])}
"""By type: to try every one of the union's models on every event takes seconds."""


def hermes_call(name: str, arguments: object) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


fragments = st.sampled_from(
    [
        "<think>\n",
        "\n</think>\n\n",
        "Hi 👋🏽 ",
        "\n",
        " ",
        "<tool_call>",
        hermes_call("add", {"a": 1}),
        hermes_call("patch", {"input": '*** Begin\n+"é"'}),
        hermes_call("patch", {"wrong": 1}),
        hermes_call("crm__find", {}),
        hermes_call("crm__sql", {"input": "select 1"}),
        hermes_call("unheard_of", {"x": [None]}),
    ]
)


@st.composite
def replies(draw: st.DrawFn) -> list[ReplyEvent]:
    """What a parser makes of any text, however that is cut; or any events a parser may make."""
    if draw(st.booleans()):
        text = "".join(draw(st.lists(fragments, max_size=6)))
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
        parser = HermesParser()
        fed = [parser.feed(text[a:b]) for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        return [*(event for events in fed for event in events), *parser.finish()]
    events: list[ReplyEvent] = []
    calls = 0
    words = st.text(min_size=1, max_size=3)
    for _ in range(draw(st.integers(0, 4))):
        match draw(st.sampled_from(["text", "reasoning", "call"])):
            case "text":
                events += [TextDelta(word) for word in draw(st.lists(words, min_size=1, max_size=2))]
            case "reasoning":
                events += [ReasoningDelta(word) for word in draw(st.lists(words, min_size=1, max_size=2))]
            case "call":
                arguments = draw(st.sampled_from(['{"a": "é", "b": [1]}', '{"input": "say \\"x\\""}', "{}"]))
                cut = draw(st.integers(0, len(arguments)))
                name = draw(st.sampled_from(["add", "patch", "crm__sql"]))
                events += [ToolCallDelta(calls, f"call_{calls}", name, arguments[:cut]), ToolCallDelta(calls, None, None, arguments[cut:])]
                calls += 1
    return events


def streamed(events: list[ReplyEvent], end: End | ApiError) -> bytes:
    writer = Responses().writer(HEAD, read_turn(BODY))
    pieces = [writer.open(), *map(writer.delta, events), writer.ping()]
    pieces.append(writer.fail(end) if isinstance(end, ApiError) else writer.close(end))
    return b"".join(pieces)


def payloads(stream: bytes) -> list[dict]:
    """The events; each one's name in the stream is its type."""
    found = []
    for block in stream.decode().split("\n\n")[:-1]:
        if not block.startswith(":"):
            name, data = block.split("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {found[-1]['type']}"
    return found


class Canned(httpx.BaseTransport):
    """Answers with what it was told, the stream in pieces cut anywhere."""

    stream = b""
    cuts: tuple[int, ...] = ()
    whole: object = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if not json.loads(request.read()).get("stream"):
            return httpx.Response(200, content=msgspec.json.encode(self.whole), headers={"content-type": "application/json"})
        return httpx.Response(200, content=self._pieces(), headers={"content-type": "text/event-stream"})

    def _pieces(self) -> Iterator[bytes]:
        yield from (self.stream[a:b] for a, b in zip([0, *self.cuts], [*self.cuts, len(self.stream)], strict=True))


CANNED = Canned()
CLIENT = openai.OpenAI(base_url="http://gateway/v1", api_key="k", http_client=httpx.Client(transport=CANNED))


def check_contract(events: list[dict]) -> None:
    """Order, identity and completeness of a stream, whatever it says."""
    for event in events:
        EVENTS[event["type"]].model_validate(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert [event["type"] in TERMINAL for event in events] == [False] * (len(events) - 1) + [True]
    assert len({event["response"]["id"] for event in (*events[:2], events[-1])}) == 1
    done: list[dict] = []
    item: dict | None = None
    said = ""
    for event in events[2:-1]:
        assert event["output_index"] == len(done)
        match event["type"]:
            case "response.output_item.added":
                assert item is None
                item, said = event["item"], ""
            case "response.output_item.done":
                assert item is not None
                assert {key: event["item"].get(key) for key in ("type", "id", "call_id")} == {
                    k: item.get(k) for k in ("type", "id", "call_id")
                }
                assert said == text_of(event["item"])
                done.append(event["item"])
                item = None
            case _:
                assert item is not None
                assert event["item_id"] == item["id"]
                if event["type"].endswith(".delta"):
                    said += event["delta"]
    assert events[-1]["response"]["output"] == done
    assert len({row["id"] for row in done}) == len(done)


def text_of(item: dict) -> str:
    match item["type"]:
        case "reasoning":
            return "".join(part["text"] for part in item["summary"])
        case "message":
            return "".join(part["text"] for part in item["content"])
        case "function_call":
            return item["arguments"]
    return item["input"]


@given(replies(), st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]), st.data())
@settings(max_examples=30, deadline=None)
def test_the_sdk_accumulates_any_stream_to_the_plain_response(events, finish, data):
    # vllm PR#56285 (ids differ between streamed and final items), cc-switch-cli#387 (text before its item), llm-gateway PR#1900
    # (tool deltas dropped), vllm PR#52418 and #55284 (text behind a call in one step ends the stream without a terminal event).
    end = End(finish=finish, usage=USAGE)
    reply = Reply()
    reply.add(events)
    whole = Responses().whole(HEAD, read_turn(BODY), reply, end)
    Response.model_validate(whole)
    stream = streamed(events, end)
    check_contract(payloads(stream))
    assert payloads(stream)[-1]["response"] == whole
    CANNED.stream, CANNED.whole = stream, whole
    CANNED.cuts = tuple(sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5))))
    plain = CLIENT.responses.create(model="m", input="hello")
    with CLIENT.responses.stream(model="m", input="hello") as sdk:
        seen = list(sdk)
    assert seen[-1].type == ("response.completed" if finish == FinishReason.STOP else "response.incomplete")
    assert without_parsed(seen[-1].response) == without_parsed(plain)
    assert seen[-1].response.output_text == reply.message().content


def without_parsed(response: Response) -> dict:
    """The SDK's parsing stream adds these."""
    row = response.to_dict()
    for item in row["output"]:
        item.pop("parsed_arguments", None)
        for part in item.get("content") or []:
            part.pop("parsed", None)
    return row


@given(replies())
@settings(max_examples=30, deadline=None)
def test_the_items_of_any_reply_read_as_that_reply(events):
    # What a client echoes must be found again among the recorded replies, or its history forks.
    reply = Reply()
    reply.add(events)
    output = Responses().whole(HEAD, read_turn(BODY), reply, End(finish=FinishReason.STOP, usage=USAGE))["output"]
    _, *echoed = read_turn({"input": [{"role": "user", "content": "hello"}, *output]}).messages
    expected = [reply.message()] if output else []
    assert [comparable(message) for message in echoed] == [comparable(message) for message in expected]


def comparable(message: Message) -> object:
    return message.content, message.reasoning, [(call.id, call.name, canonical_arguments(call.arguments)) for call in message.tool_calls]


@given(
    replies(), st.sampled_from([ApiError(500, "boom", type="server_error", code="engine_error"), ApiError(400, "no", type="x", code="y")])
)
@settings(max_examples=30, deadline=None)
def test_a_stream_that_fails_ends_with_one_terminal_event(events, error):
    # openai/codex#41340, ollama/ollama#14600: clients wait for a terminal event and try again without one.
    found = payloads(streamed(events, error))
    assert [event["type"] for event in found if event["type"] in TERMINAL] == ["response.failed"]
    response = found[-1]["response"]
    assert response["status"] == "failed"
    assert response["error"] == {"code": "server_error" if error.status == 500 else "y", "message": error.message}


def test_usage_has_the_detail_objects_that_codex_reads():
    whole = Responses().whole(HEAD, read_turn(BODY), Reply(), End(finish=FinishReason.STOP, usage=USAGE))
    assert whole["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 16,
    }


@pytest.mark.parametrize("sealed", [True, False])
def test_reasoning_is_sealed_only_where_the_client_asks(sealed):
    reply = Reply()
    reply.add([ReasoningDelta("hm")])
    turn = read_turn({**BODY, "include": ["reasoning.encrypted_content"] if sealed else []})
    [item] = Responses().whole(HEAD, turn, reply, End(finish=FinishReason.STOP, usage=USAGE))["output"]
    assert item["summary"] == [{"type": "summary_text", "text": "hm"}]
    assert bool(item.get("encrypted_content")) == sealed
