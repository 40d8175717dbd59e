"""Models with formats of their own behind the gateway: an unmodified SDK client over real HTTP, the engine scripted in the format."""

from __future__ import annotations

import json

import pytest
from tests.gateway.templates import templated

from openforge.types import Sampling

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}, "line": {"type": ["integer", "null"]}}}
TOOLS = [{"type": "function", "function": {"name": "edit", "description": "edits", "parameters": SCHEMA}}]
EDITS = [{"path": "a.py", "text": "    return None\n", "line": 3}, {"path": "b.xml", "text": "<a></parameter></a>", "line": None}]
SCRIPTS = {
    "minimax-m2": (
        ("]~!b[", "]~b]", "[e~["),
        "two edits\n</think>\n\nI edit.\n<minimax:tool_call>\n"
        '<invoke name="edit">\n<parameter name="path">a.py</parameter>\n<parameter name="text">    return None\n</parameter>\n'
        '<parameter name="line">3</parameter>\n</invoke>\n'
        '<invoke name="edit">\n<parameter name="path">b.xml</parameter>\n<parameter name="text"><a></parameter></a></parameter>\n'
        '<parameter name="line">null</parameter>\n</invoke>\n</minimax:tool_call>',
    ),
    "qwen3.5": (
        ("<|im_start|>", "<|im_end|>"),
        "two edits\n</think>\n\nI edit.\n\n"
        "<tool_call>\n<function=edit>\n<parameter=path>\na.py\n</parameter>\n<parameter=text>\n    return None\n\n</parameter>\n"
        "<parameter=line>\n3\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=edit>\n<parameter=path>\nb.xml\n</parameter>\n<parameter=text>\n<a></parameter></a>\n</parameter>\n"
        "<parameter=line>\nNone\n</parameter>\n</function>\n</tool_call>",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
async def test_an_agents_round_through_the_gateway(make_house, name):
    """Reasoning starts prefilled (sglang#22637), parallel calls keep their index (vllm#34322), values their type (sglang#16057,
    vllm#44060), and the next call goes on behind the stored ids although the client lost the reasoning."""
    special_tokens, sampled = SCRIPTS[name]
    async with make_house(tokenizer=templated(name, special_tokens)) as house:
        house.say(sampled)
        client = await house.client(sampling=Sampling(max_tokens=4096))
        asked = [{"role": "user", "content": "Fix it."}]
        reasoning, content, calls = "", "", {}
        async for chunk in await client.chat.completions.create(model="m", messages=asked, tools=TOOLS, stream=True):
            delta = chunk.choices[0].delta
            reasoning += getattr(delta, "reasoning_content", None) or ""
            content += delta.content or ""
            for call in delta.tool_calls or ():
                calls.setdefault(call.index, [call.id, ""])[1] += call.function.arguments
        assert (reasoning, content, chunk.choices[0].finish_reason) == ("two edits", "I edit.", "tool_calls")
        assert [json.loads(arguments) for _, arguments in calls.values()] == EDITS
        made = [{"id": id, "type": "function", "function": {"name": "edit", "arguments": args}} for id, args in calls.values()]
        results = [{"role": "tool", "tool_call_id": id, "content": "done"} for id, _ in calls.values()]
        asked += [{"role": "assistant", "content": content, "tool_calls": made}, *results]
        house.say("checked\n</think>\n\nDone.")
        reply = await client.chat.completions.create(model="m", messages=asked, tools=TOOLS)
        assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("Done.", "stop")
        first, second = house.engine.prompts
        call = house.log.calls[0]
        assert second[: len(first) + len(call.sampled)] == [*first, *call.sampled]
        assert house.log.calls[1].fork is None


async def test_a_call_cut_short_is_text_and_ends_with_length(make_house):
    special_tokens, sampled = SCRIPTS["minimax-m2"]
    async with make_house(tokenizer=templated("minimax-m2", special_tokens)) as house:
        house.say(sampled[: sampled.index("3</parameter>")], closed=False)
        reply = await (await house.client(sampling=Sampling(max_tokens=4096))).chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Fix it."}], tools=TOOLS
        )
        message = reply.choices[0].message
        assert (message.tool_calls, reply.choices[0].finish_reason) == (None, "length")
        assert message.content == sampled[sampled.index("I edit.") : sampled.index("3</parameter>")]
