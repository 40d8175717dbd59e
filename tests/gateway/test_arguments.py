"""What a client makes of the arguments of the model's own tool calls."""

from __future__ import annotations

import json

import pytest

from openforge.types import Fork

CALL = '<tool_call>\n{"name": "edit", "arguments": {"path": "a.py", "count": 1}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "edit", "parameters": {"type": "object"}}}]


async def echo(house, arguments: str):
    """The two calls of a client that sends this back as its first call's arguments."""
    house.say(CALL)
    client = await house.client()
    history = [{"role": "user", "content": "Edit it."}]
    reply = (await client.chat.completions.create(model="m", messages=history, tools=TOOLS)).choices[0].message
    called = reply.model_dump(exclude_none=True)
    assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == {"path": "a.py", "count": 1}
    called["tool_calls"][0]["function"]["arguments"] = arguments
    result = {"role": "tool", "tool_call_id": reply.tool_calls[0].id, "content": "done"}
    await client.chat.completions.create(model="m", messages=[*history, called, result], tools=TOOLS)
    first, second = await house.recorded(2)
    assert second.parent_id == first.id
    return first, second


@pytest.mark.parametrize("arguments", ['{"path": "a.py", "count": 1, "all": false}', '{"all": null, "count": 1.0, "path": "a.py"}'])
async def test_a_default_filled_in_by_the_client_is_no_edit(house, arguments):
    """As Claude Code does with `replace_all` of its Edit tool."""
    first, second = await echo(house, arguments)
    assert second.fork is None
    assert second.shared == len(first.delta) + len(first.sampled)


@pytest.mark.parametrize(
    "arguments", ['{"path": "b.py", "count": 1, "all": false}', '{"path": "a.py", "all": false}', '{"path": "a.py"}', "[]"]
)
async def test_a_sampled_argument_changed_or_dropped_is_an_edit(house, arguments):
    first, second = await echo(house, arguments)
    assert second.fork is Fork.EDITED
    assert second.shared < len(first.delta)
