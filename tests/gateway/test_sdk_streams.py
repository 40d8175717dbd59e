"""For any reply and any way of cutting it up, what an official SDK adds a stream up to is what it reads from the plain reply."""

from __future__ import annotations

import json

import httpx
import httpx2
import openai
import pytest
from google import genai
from google.genai import types
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from openforge.gateway.body import json_response
from openforge.gateway.dialects.base import ReplyHead
from openforge.gateway.dialects.chat import Chat
from openforge.gateway.dialects.gemini import Gemini
from openforge.gateway.formats.hermes_parser import HermesParser
from openforge.gateway.reply import End, Reply, ToolCallDelta, Usage
from openforge.gateway.text import Detokenizer, encode, own_tokenizer
from openforge.gateway.turn import Turn
from openforge.types import FinishReason

HEAD = ReplyHead(id="00ff" * 8, model="tiny", usage=Usage(prompt_tokens=9))
USAGE = Usage(prompt_tokens=9, cached_tokens=4, sampled_tokens=5, reasoning_tokens=2)
TURN = Turn(messages=(), include_usage=True, fields={"generationConfig": {"thinking_config": {"include_thoughts": True}}})
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
ODD = '<tool_call>\n{"name": "ä", "arguments": {"s": "</tool_call>\\u2028\\ud83d", "n": [1.0, 1e400, null], "o": {}}}\n</tool_call>'
FRAGMENTS = [CALL, ODD, "<think>\n", "\n</think>\n\n", "<tool_call>", "data: {}\n\n", ": x\n", "\u2028\r\n\n", "👋🏽", " ", "a"]
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=5), max_size=8).map("".join)
FINISHES = st.sampled_from([FinishReason.STOP, FinishReason.LENGTH])


def events_of(tokenizer, text, pieces):
    """What the reply's tokens become, arguments in `pieces` parts, as formats that stream them send them."""
    detokenizer, parser = Detokenizer(tokenizer), HermesParser()
    events = [event for id in encode(tokenizer, text) for event in parser.feed(detokenizer.push(id))]
    events += [*parser.feed(detokenizer.finish()), *parser.finish()]
    for event in events:
        if not isinstance(event, ToolCallDelta):
            yield event
            continue
        size = max(1, len(event.arguments) // pieces)
        yield ToolCallDelta(event.index, event.id, event.name, event.arguments[:size])
        for at in range(size, len(event.arguments), size):
            yield ToolCallDelta(event.index, None, None, event.arguments[at : at + size])


class OpenAI:
    dialect = Chat()

    def __init__(self):
        self.answer = httpx2.Response(500)
        http = httpx2.Client(transport=httpx2.MockTransport(lambda _: self.answer))
        self.client = openai.OpenAI(base_url="http://canned", api_key="x", max_retries=0, http_client=http)

    def streamed(self, pieces):
        self.answer = httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=iter(pieces))
        with self.client.chat.completions.stream(model="m", messages=[], stream_options={"include_usage": True}) as stream:
            try:
                return self.row(stream.get_final_completion())
            except openai.LengthFinishReasonError as cut:
                return self.row(cut.completion)

    def plain(self, body):
        self.answer = httpx2.Response(200, headers={"content-type": "application/json"}, content=body)
        return self.row(self.client.chat.completions.create(model="m", messages=[]))

    def row(self, completion):
        row = json.loads(completion.model_dump_json(exclude_none=True))
        message = row["choices"][0]["message"]
        message["content"] = message.get("content") or ""
        for call in message.get("tool_calls", ()):
            # only the stream helper's calls have these
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
        return row


class Google:
    dialect = Gemini()

    def __init__(self):
        self.answer = httpx.Response(500)
        http = httpx.Client(transport=httpx.MockTransport(lambda _: self.answer))
        self.client = genai.Client(api_key="x", http_options=types.HttpOptions(base_url="http://canned", httpx_client=http))

    def streamed(self, pieces):
        self.answer = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=iter(pieces))
        return self.row(self.client.models.generate_content_stream(model="m", contents="x"))

    def plain(self, body):
        self.answer = httpx.Response(200, headers={"content-type": "application/json"}, content=body)
        return self.row([self.client.models.generate_content(model="m", contents="x")])

    def row(self, replies):
        """As a chat keeps it: adjacent texts of one kind are one."""
        parts = []
        for reply in replies:
            for part in json.loads(reply.candidates[0].content.model_dump_json(exclude_none=True))["parts"]:
                if parts and "text" in part and "text" in parts[-1] and part.get("thought") == parts[-1].get("thought"):
                    parts[-1]["text"] += part["text"]
                elif part.get("text") != "":
                    parts.append(part)
        last = reply.model_dump(exclude_none=True, exclude={"sdk_http_response", "candidates", "automatic_function_calling_history"})
        return {"parts": parts, "finish": reply.candidates[0].finish_reason, **last}


SDKS = {"openai": OpenAI(), "google-genai": Google()}


@pytest.mark.parametrize("name", SDKS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(text=CALL + CALL, finish=FinishReason.STOP, pieces=3, size=7, ping=True)
@example(text="<think>\nhm\n</think>\n\nBoth." + CALL + "after" + ODD, finish=FinishReason.STOP, pieces=1, size=1, ping=True)
@example(text="", finish=FinishReason.LENGTH, pieces=1, size=99, ping=False)
@given(text=TEXTS, finish=FINISHES, pieces=st.integers(1, 5), size=st.integers(1, 200), ping=st.booleans())
def test_streamed_and_plain_reply_are_the_same_to_the_sdk(name, tiny_tokenizer, text, finish, pieces, size, ping):
    sdk = SDKS[name]
    reply, end = Reply(), End(finish=finish, usage=USAGE)
    events = list(events_of(own_tokenizer(tiny_tokenizer), text, pieces))
    reply.add(events)
    writer = sdk.dialect.writer(HEAD, TURN)
    raw = writer.open() + b"".join((writer.ping() if ping else b"") + writer.delta(event) for event in events) + writer.close(end)
    cut = [raw[at : at + size] for at in range(0, len(raw), size)]
    assert sdk.streamed(cut) == sdk.plain(bytes(json_response(sdk.dialect.whole(HEAD, TURN, reply, end)).body))


@pytest.mark.parametrize("arguments", ['{"a": ', "[1]", "not JSON", ""])
@pytest.mark.parametrize(("finish", "reason"), [(FinishReason.STOP, "MALFORMED_FUNCTION_CALL"), (FinishReason.LENGTH, "MAX_TOKENS")])
def test_call_whose_arguments_are_no_object_is_left_out_of_googles_reply_and_said_to_be_malformed(arguments, finish, reason):
    events = [ToolCallDelta(0, "c1", "add", arguments), ToolCallDelta(1, "c2", "add", '{"a":\n 2}')]
    reply, end = Reply(), End(finish=finish, usage=USAGE)
    reply.add(events)
    candidate = json.loads(json_response(Gemini().whole(HEAD, TURN, reply, end)).body)["candidates"][0]
    assert candidate["content"]["parts"] == [{"functionCall": {"id": "c2", "name": "add", "args": {"a": 2}}}]
    assert candidate["finishReason"] == reason
