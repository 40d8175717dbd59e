"""Clients that show the model its own replies in words of theirs, in the shapes of the real ones, through the real gateway."""

from __future__ import annotations

from typing import Any

from tests.gateway.conftest import build_house

from openforge.coordinator import Lineage, delivered, lineages, trajectories
from openforge.types import Call, LineageKind

TOOLS = [{"type": "function", "function": {"name": "shell"}}]
CALL = '<tool_call>\n{"name": "shell", "arguments": {"command": "ls"}}\n</tool_call>'
SYSTEM, ASK = {"role": "system", "content": "You are an agent."}, {"role": "user", "content": "Fix the calculator."}


class Client:
    def __init__(self, house: Any, sdk: Any) -> None:
        self._house, self._sdk = house, sdk

    async def ask(self, reply: str, *messages: dict[str, Any], tools: bool = True) -> dict[str, Any]:
        self._house.say(reply)
        options = {"tools": TOOLS} if tools else {}
        answer = await self._sdk.chat.completions.create(model="m", messages=list(messages), **options)
        return answer.choices[0].message.model_dump(exclude_none=True)  # type: ignore[no-any-return]


async def recorded(scene: Any) -> tuple[list[Call], list[Lineage]]:
    async with build_house() as house:
        await scene(Client(house, await house.client()))
        calls = house.log.calls
        found = lineages(calls)
        assert delivered(trajectories(calls)).trained == sum(len(call.sampled) for call in calls)
        return calls, found


def result(reply: dict[str, Any], content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": content}


async def test_a_compaction_that_keeps_the_last_messages_goes_on_from_them() -> None:
    """Pi's: the summary is asked for in a conversation of its own, and stands before messages that were kept."""

    async def scene(client: Client) -> None:
        first = await client.ask(CALL, SYSTEM, ASK)
        second = await client.ask(CALL, SYSTEM, ASK, first, result(first, "one"))
        summary = "The calculator adds where it should multiply."
        await client.ask(summary, {"role": "system", "content": "You summarise."}, {"role": "user", "content": "User: fix it"}, tools=False)
        rest = [SYSTEM, {"role": "user", "content": f"So far:\n{summary}"}, second, result(second, "two")]
        third = await client.ask(CALL, *rest)
        await client.ask("Done.", *rest, third, result(third, "three"))

    calls, found = await recorded(scene)
    first, second, summary, third, fourth = (call.id for call in calls)
    assert [(lineage.kind, lineage.call_ids, lineage.of) for lineage in found[:1]] == [(LineageKind.MAIN, [first, second], None)]
    rest = {(lineage.kind, tuple(lineage.call_ids), lineage.of, lineage.purpose) for lineage in found[1:]}
    assert rest == {
        (LineageKind.CONTINUATION, (summary,), second, "compact"),
        (LineageKind.CONTINUATION, (third, fourth), second, None),
    }


async def test_a_reply_turned_into_text_is_known_by_its_tool_calls_ids() -> None:
    """As smolagents shows its own tool calls and their results."""

    async def scene(client: Client) -> None:
        history = [SYSTEM, ASK]
        for step in range(3):
            reply = await client.ask(CALL, *history)
            text = f"Calling tools:\n[{{'id': '{reply['tool_calls'][0]['id']}', 'function': {{'name': 'shell'}}}}]"
            history += [{"role": "assistant", "content": text}, {"role": "user", "content": f"Observation:\n{step}"}]

    calls, found = await recorded(scene)
    first, second, third = (call.id for call in calls)
    assert [(lineage.kind, lineage.call_ids) for lineage in found[:1]] == [(LineageKind.MAIN, [first])]
    assert {(lineage.kind, lineage.call_ids[0], lineage.of) for lineage in found[1:]} == {
        (LineageKind.CONTINUATION, second, first),
        (LineageKind.CONTINUATION, third, second),
    }


async def test_an_agent_without_tools_goes_on_behind_what_it_said() -> None:
    """As aider does, which puts the files' new contents between the conversation and its last message, and mends the message before."""

    async def scene(client: Client) -> None:
        def files(state: str) -> list[dict[str, Any]]:
            return [{"role": "user", "content": f"The files:\n{state}"}, {"role": "assistant", "content": "Ok."}]

        last = {"role": "user", "content": "Fix the calculator.\n\nUse blocks."}
        edit = await client.ask("Replace the first line by a product.", SYSTEM, *files("a + b"), last, tools=False)
        failed = {"role": "user", "content": "It printed 7.\n\nUse blocks."}
        await client.ask("Mind the order.", SYSTEM, ASK, edit, *files("a * b"), failed, tools=False)

    calls, found = await recorded(scene)
    first, second = (call.id for call in calls)
    assert [(lineage.kind, lineage.call_ids, lineage.of) for lineage in found] == [
        (LineageKind.MAIN, [first], None),
        (LineageKind.CONTINUATION, [second], first),
    ]
