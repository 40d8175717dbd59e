"""Sessions of real agents' shapes, through the real gateway: who speaks is the same whatever overtakes what.

A session is a coroutine that talks to the gateway as its agent would. Hypothesis decides which waiting request goes next, so titles come
first or last and sub-agents interleave; what follows from a reply still follows it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.conftest import Script, build_house

from openforge.coordinator import delivered, lineages, trajectories
from openforge.types import Call, LineageKind, MaskReason, Sampling

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("shell", "agent")]
SUMMARY = "The user wants the calculator fixed and every test green."
PROMPTS = ["Look through the parser for the bug.", "Read all of the documentation please."]


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class Turns:
    """Lets waiting requests through one at a time, in an order somebody else chooses."""

    def __init__(self, choose: Any) -> None:
        self._choose = choose
        self._waiting: list[tuple[str, asyncio.Event]] = []
        self.turn_over = asyncio.Event()

    async def wait(self, label: str) -> None:
        go = asyncio.Event()
        self._waiting.append((label, go))
        await go.wait()

    async def conduct(self, work: asyncio.Task[None]) -> None:
        while not work.done():
            for _ in range(20):
                await asyncio.sleep(0)
            if self._waiting:
                self._waiting.sort(key=lambda item: item[0])
                _, go = self._waiting.pop(self._choose(len(self._waiting)))
                self.turn_over.clear()
                go.set()
                await self.turn_over.wait()
        await work


class Agent:
    """A client on one rollout. `names`: whether it names its speakers, as Claude Code does."""

    def __init__(self, house: Any, turns: Turns, *, names: bool) -> None:
        self._house = house
        self._turns = turns
        self._names = names
        self.labels: dict[str, str] = {}
        """Call id -> what it was in truth."""

    async def ask(self, label: str, reply: str, messages: list[Any], *, tools: Any = TOOLS, agent: str = "", retry: int = 0) -> Any:
        await self._turns.wait(label)
        self._house.engine.scripts.insert(0, Script(reply))
        headers = {"x-stainless-retry-count": str(retry)}
        if self._names:
            headers |= {"x-claude-code-session-id": "s1"} | ({"x-claude-code-agent-id": agent} if agent else {})
        async with httpx.AsyncClient() as client:
            body = {"model": "m", "messages": messages, **({"tools": tools} if tools else {})}
            answer = (await client.post(f"{self._house.address}/r/r1/v1/chat/completions", json=body, headers=headers)).json()
        self.labels.setdefault(answer["id"].removeprefix("chatcmpl-"), label)
        self._turns.turn_over.set()
        message = answer["choices"][0]["message"]
        return {key: message[key] for key in ("role", "content", "tool_calls") if message.get(key)}

    async def title(self) -> None:
        await self.ask("title", "Fixing the calculator's tests", [system("Write a short title."), user("Fix the calculator.")], tools=None)

    async def sub_agent(self, number: int, *, compacts: bool) -> str:
        name = f"sub{number}"
        history = [system("You help."), user(PROMPTS[number])]
        for step in range(2):
            history.append(await self.ask(f"{name}", call("shell", command=f"ls {number}{step}"), history, agent=name))
            history.append({"role": "tool", "content": f"{step}", "tool_call_id": history[-1]["tool_calls"][0]["id"]})
        if compacts:
            summary = f"Sub-agent {number} has looked at both of its folders."
            await self.ask(name, summary, [*history, user("Summarise.")], agent=name)
            history = [system("You help."), user(f"{PROMPTS[number]}\n{summary}")]
            await self.ask(f"{name} continued", f"found {number}", history, agent=name)
        else:
            await self.ask(name, f"found {number}", history, agent=name)
        return f"found {number}"

    async def main(self, subs: int, *, compacts: bool, sub_compacts: bool, retries: bool) -> None:
        history = [system("You are an agent."), user("Fix the calculator.")]
        history.append(await self.ask("main", call("shell", command="pytest"), history))
        if retries:
            await self.ask("main", "never sampled", history[:2], retry=1)
        history.append({"role": "tool", "content": "1 failed", "tool_call_id": history[-1]["tool_calls"][0]["id"]})
        if subs:
            calls = "\n".join(call("agent", prompt=PROMPTS[number]) for number in range(subs))
            history.append(await self.ask("main", calls, history))
            ids = [row["id"] for row in history[-1]["tool_calls"]]
            found = await asyncio.gather(*(self.sub_agent(number, compacts=sub_compacts) for number in range(subs)))
            history += [{"role": "tool", "content": text, "tool_call_id": id} for id, text in zip(ids, found, strict=True)]
        history.append(await self.ask("main", call("shell", command="edit"), history))
        history.append({"role": "tool", "content": "done", "tool_call_id": history[-1]["tool_calls"][0]["id"]})
        if compacts:
            await self.ask("main", SUMMARY, [*history, user("Summarise.")])
            history = [system("You are an agent."), user(f"Summary:\n{SUMMARY}")]
        await self.ask("main continued" if compacts else "main", "All green.", history)


async def play(choose: Any, *, names: bool, titles: int, **what: Any) -> tuple[list[Call], dict[str, str]]:
    async with build_house() as house:
        house.gateway.open("r1", sampling=Sampling())
        turns = Turns(choose)
        agent = Agent(house, turns, names=names)

        async def everything() -> None:
            await asyncio.gather(agent.main(**what), *(agent.title() for _ in range(titles)))

        await turns.conduct(asyncio.create_task(everything()))
        return house.log.calls, agent.labels


EXPECTED = {
    "main": LineageKind.MAIN,
    "main continued": LineageKind.CONTINUATION,
    "title": LineageKind.SIDE,
    **{f"sub{n}": LineageKind.SUB_AGENT for n in range(2)},
    **{f"sub{n} continued": LineageKind.CONTINUATION for n in range(2)},
}


@settings(max_examples=8, deadline=None)
@given(
    data=st.data(),
    names=st.booleans(),
    titles=st.integers(0, 1),
    subs=st.integers(0, 2),
    compacts=st.booleans(),
    sub_compacts=st.booleans(),
    retries=st.booleans(),
)
def test_who_speaks_does_not_depend_on_what_overtakes_what(data: st.DataObject, **what: Any) -> None:
    """NeMo Gym took the call that ended first for the main agent; uni-agent#90 and ROLL kept the longest chain only."""
    calls, labels = asyncio.run(play(lambda n: data.draw(st.integers(0, n - 1)), **what))
    found = lineages(calls)
    by_label: dict[str, list[list[str]]] = {}
    for lineage in found:
        (label,) = {labels[id] for id in lineage.call_ids}
        assert lineage.kind is EXPECTED[label]
        assert label not in by_label
        by_label[label] = lineage.call_ids
        if "sub" in label and "continued" not in label:
            spawner = next(call for call in calls if call.id == lineage.of)
            assert labels[spawner.id] == "main"
            assert PROMPTS[int(label[3])] in json.dumps(spawner.response)
        elif "continued" in label:
            assert labels[str(lineage.of)] == label.removesuffix(" continued")
    assert set(by_label) == set(labels.values())

    total = delivered(trajectories(calls))
    assert total.sampled == sum(len(call.sampled) for call in calls)
    assert set(total.masked) <= {MaskReason.SIDE}
    side = sum(len(call.sampled) for call in calls if labels[call.id] == "title")
    assert total.trained == total.sampled - side
    shuffled = data.draw(st.permutations(calls))
    assert lineages(shuffled) == found


@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize("last", [False, True])
async def test_a_title_call_that_comes_first_or_last_is_not_the_main_agent(names: bool, last: bool) -> None:
    """OpenCode asks for its title before the agent's own first call (NVIDIA-NeMo/Gym#1824)."""
    order = iter([0, 0, 0, 0, 0] if last else [1, 0, 0, 0, 0])
    calls, labels = await play(
        lambda n: min(next(order), n - 1), names=names, titles=1, subs=0, compacts=False, sub_compacts=False, retries=False
    )
    assert (labels[calls[0].id] == "title") is not last
    assert [(lineage.kind, lineage.purpose) for lineage in lineages(calls)] == [(LineageKind.MAIN, None), (LineageKind.SIDE, "title")]
    assert Counter(labels.values()) == {"main": 3, "title": 1}
