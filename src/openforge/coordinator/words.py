"""What calls tell of each other by their text: who was started by whose tool call, and who goes on from whose reply.

Invariant: text is evidence only where it must have come from the other call: that one had ended before this one began, and what they share
is whole lines that did not stand in the other's prompt already. Token prefixes cannot tell these things: a sub-agent starts from a prompt
of its own, and a compaction throws the old one away.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from openforge.coordinator.forest import Forest
from openforge.coordinator.messages import conversation
from openforge.types import Call

Row = dict[str, Any]
LINE = 16
"""Characters: a shorter line may stand in two places by chance."""
WORDS = 3
"""A tool call's argument of fewer is a name or a path, and no task for an agent."""
CARRIED = 0.2
"""Share of a summary that must be found again: clients drop the analysis before it, and tags."""


class Words:
    def __init__(self, forest: Forest, ids: Collection[str]) -> None:
        """`ids`: the calls that may have handed something on."""
        self._forest = forest
        self._prompts: dict[str, list[Row]] = {}
        self._tasks = {id: list(_arguments(forest.calls[id].response)) for id in ids}
        self._echoes: dict[str, list[str]] = defaultdict(list)
        """Reply, by its tool calls' ids, with the message before it, or alone if it is long -> the calls that gave it."""
        self._tool_calls = {call["id"]: id for id in ids for call in forest.calls[id].response.get("tool_calls", ())}
        """Id of a tool call -> the call that made it."""
        for id in ids:
            for key in _echo_keys(self._last_message(forest.calls[id]), forest.calls[id].response):
                self._echoes[key].append(id)

    def spawner(self, head: str, callers: Iterable[str], *, exact: bool) -> str | None:
        """Of `callers`, the call whose reply started `head` as a sub-agent: the first user message is an argument of its tool call.

        `exact`: is the whole argument; otherwise it also counts if the one holds the other in whole lines (clients add their reminders).
        Of several calls, the one that fits most of the text, then the latest.
        """
        task = next((_text(row).strip() for row in self._prompt(head) if row["role"] == "user"), "")
        fits = []
        for id in callers:
            if task and self._before(id, head) and (fit := max((_fit(value, task, exact) for value in self._tasks[id]), default=0)):
                fits.append((fit, self._forest.calls[id].ended_at, id))
        return max(fits)[2] if fits else None

    def echoed(self, head: str) -> str | None:
        """The call whose reply stands last in the prompt of `head` as the assistant's message.

        Where the client has turned a reply into text of its own (smolagents does), the ids of its tool calls tell which it was.
        """
        rows = self._prompt(head)
        for at in range(len(rows) - 1, -1, -1):
            if rows[at]["role"] == "assistant":
                for key in _echo_keys(rows[at - 1] if at else {}, rows[at]):
                    if found := [id for id in self._echoes.get(key, ()) if self._before(id, head)]:
                        return max(found, key=lambda id: (self._same_voice(id, head), self._forest.calls[id].ended_at, id))
                told = [self._tool_calls[word] for word in re.findall(r"\w+", _text(rows[at])) if word in self._tool_calls]
                if found := [id for id in told if self._before(id, head)]:
                    return found[-1]
        return None

    def carried(self, head: str, tails: Iterable[str]) -> list[str]:
        """Of `tails`, the calls whose replies were copied into the prompt of `head` in whole lines (summaries), the likeliest last."""
        text = "\n".join(_text(row) for row in self._prompt(head) if row["role"] in ("user", "system"))
        lines = set(map(str.strip, text.splitlines()))
        found = [id for id in tails if self._before(id, head) and self._is_carried(id, lines, text)]
        return sorted(found, key=lambda id: (self._same_voice(id, head), self._forest.calls[id].ended_at, id))

    def instruction(self, head: str) -> str:
        """The system messages of a prompt, or its first message if there are none."""
        rows = self._prompt(head)
        return "\n".join(_text(row) for row in rows if row["role"] == "system") or next(map(_text, rows), "")

    def _is_carried(self, id: str, lines: set[str], text: str) -> bool:
        said = [line for line in map(str.strip, _text(self._forest.calls[id].response).splitlines()) if len(line) >= LINE]
        if not said:
            return False
        there = {line for line in said if line in lines} | {line for line in (max(said, key=len),) if line in text}
        if not there:
            return False
        asked = "\n".join(map(_text, self._prompt(id)))
        return sum(len(line) for line in there if line not in asked) >= CARRIED * sum(map(len, said))

    def _before(self, id: str, head: str) -> bool:
        return id != head and self._forest.calls[id].ended_at <= self._forest.calls[head].started_at

    def _same_voice(self, id: str, head: str) -> bool:
        return voice(self._forest.calls[id]) == voice(self._forest.calls[head])

    def _last_message(self, call: Call) -> Row:
        while not call.request.get("messages") and call.parent_id is not None:
            call = self._forest.calls[call.parent_id]
        rows: list[Row] = call.request.get("messages") or [{}]
        return rows[-1]

    def _prompt(self, id: str) -> list[Row]:
        """All messages of a call's prompt."""
        if id not in self._prompts:
            self._prompts[id] = conversation(self._forest.calls, id)[:-1]
        return self._prompts[id]


def voice(call: Call) -> str | None:
    """Who speaks, by the client's own names; None where it names nobody."""
    return call.speaker.agent or call.speaker.session


def _text(row: Row) -> str:
    return row.get("content") or ""


def _arguments(reply: Row) -> Iterator[str]:
    """The texts in the arguments of a reply's tool calls."""
    for call in reply.get("tool_calls", ()):
        try:
            yield from _strings(json.loads(call["arguments"]))
        except (ValueError, RecursionError):
            yield call["arguments"].strip()


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value.strip()
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _fit(value: str, task: str, exact: bool) -> int:
    """How many characters of an argument and a task are the same, 0 if the one does not hold the other."""
    if value == task:
        return len(value)
    short, long = sorted((value, task), key=len)
    return len(short) if not exact and len(short.split()) >= WORDS and f"\n{short}\n" in f"\n{long}\n" else 0


def _echo_keys(before: Row, reply: Row) -> Sequence[str]:
    """By what a reply is known again, the strongest first."""
    if not (_text(reply).strip() or reply.get("tool_calls")):
        return ()
    calls = [[call["name"], _plain(call["arguments"])] for call in reply.get("tool_calls", ())]
    said = json.dumps([_text(reply).strip(), calls], sort_keys=True)
    pair = json.dumps([before.get("role"), _text(before), said])
    # The gateway gave the tool calls their ids, so no other reply has them; but a client may rename them.
    ids = [json.dumps(["ids", *(call["id"] for call in reply["tool_calls"])])] if reply.get("tool_calls") else []
    return (*ids, pair, said) if len(_text(reply).strip()) >= 2 * LINE else (*ids, pair)


def _plain(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
