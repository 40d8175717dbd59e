"""Where a chain of calls comes from: what it goes on from, or what started it.

Invariant: the client's ids are asked first, then the token prefix, then text. A chain of which all three say nothing has no origin.

A call that writes a summary for its own agent belongs to that agent's thread: what the agent remembers from then on is what it wrote, so
it is as much a part of the work as any other reply. It is told from a side call by where its reply went: into a later prompt.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from openforge.coordinator.forest import Forest
from openforge.coordinator.lineage import Evidence, Lineage
from openforge.coordinator.words import Words, voice
from openforge.types import LineageKind

COMPACT = "compact"


class Origins:
    def __init__(self, forest: Forest, chains: Sequence[list[str]]) -> None:
        self._forest = forest
        self._chains = chains
        self._chain_of = {id: chain for chain in chains for id in chain}
        self._asked_again = {forest.calls[id].parent_id for id in self._chain_of if forest.anchor[id] is None}
        self.words = Words(forest, self._chain_of)
        self._echoed = {chain[0]: self.words.echoed(chain[0]) for chain in chains if forest.anchor[chain[0]] is None}
        tails = [chain[-1] for chain in chains]
        # What still stands as a reply was not summed up.
        self._carried = {
            head: self.words.carried(head, [tail for tail in tails if tail != echoed]) for head, echoed in self._echoed.items()
        }
        self._summaries = {id for found in self._carried.values() for id in found}

    def of(self, chain: list[str]) -> Lineage | None:
        """The chain as a sub-agent, a continuation or an orphan; None if it stands at the root of a thread."""
        anchor = self._forest.anchor[chain[0]]
        return self._branch(chain, anchor) if anchor is not None else self._root(chain)

    def _branch(self, chain: list[str], anchor: str) -> Lineage:
        """A chain that keeps something of a reply."""
        call = self._forest.calls[chain[0]]
        purpose = call.speaker.purpose
        if call.speaker.agent is not None and voice(call) != voice(self._forest.calls[anchor]):
            return Lineage(LineageKind.SUB_AGENT, chain, anchor, purpose, Evidence.IDS)
        if purpose == COMPACT:
            return Lineage(LineageKind.CONTINUATION, chain, anchor, purpose, Evidence.IDS)
        if not self._forest.extends[chain[0]]:
            return Lineage(LineageKind.CONTINUATION, chain, anchor)
        if not self._is_single(chain):
            return Lineage(LineageKind.SUB_AGENT, chain, anchor)
        if chain[0] in self._summaries:
            return Lineage(LineageKind.CONTINUATION, chain, anchor, COMPACT, Evidence.RULE)
        return Lineage(LineageKind.ORPHAN, chain, anchor)

    def _root(self, chain: list[str]) -> Lineage | None:
        """A chain that keeps no reply."""
        head = chain[0]
        call = self._forest.calls[head]
        if self._is_abandoned(chain):
            return Lineage(LineageKind.ORPHAN, chain)
        summary = head in self._summaries or call.speaker.purpose == COMPACT
        works = summary or self._forest.has_tools(head) or not self._is_single(chain) or self._is_next_turn(head)
        purpose = COMPACT if call.speaker.purpose is None and self._is_single(chain) and head in self._summaries else call.speaker.purpose
        before = self._echoed[head] or next(reversed(self._carried[head]), None) or self._summed_up(head)
        same = before is not None and voice(call) is not None and voice(call) == voice(self._forest.calls[before])
        if same and works:
            return Lineage(LineageKind.CONTINUATION, chain, before, purpose, Evidence.IDS)
        if call.speaker.agent is not None:
            if works and (before := self._last_of_voice(chain)) is not None:
                return Lineage(LineageKind.CONTINUATION, chain, before, purpose, Evidence.IDS)
            return Lineage(LineageKind.SUB_AGENT, chain, self._started_by(head, self._callers(head)), call.speaker.purpose, Evidence.IDS)
        if (spawner := self.words.spawner(head, self._chain_of, exact=True)) is not None:
            return Lineage(LineageKind.SUB_AGENT, chain, spawner, purpose, Evidence.RULE)
        if before is not None and works:
            return Lineage(LineageKind.CONTINUATION, chain, before, purpose, Evidence.RULE)
        if (parent := self._posted_behind(head)) is not None:
            return Lineage(LineageKind.CONTINUATION, chain, parent, purpose)
        if (spawner := self.words.spawner(head, self._chain_of, exact=False)) is not None:
            return Lineage(LineageKind.SUB_AGENT, chain, spawner, purpose, Evidence.RULE)
        if works and (before := self._last_of_voice(chain)) is not None:
            return Lineage(LineageKind.CONTINUATION, chain, before, purpose, Evidence.IDS)
        return None

    def _is_next_turn(self, head: str) -> bool:
        """Whether it shows a reply and is told what the call that gave it was told: how an agent without tools goes on."""
        before = self._echoed[head]
        return before is not None and self.words.instruction(head) == self.words.instruction(before)

    def _summed_up(self, head: str) -> str | None:
        """Of a summary that keeps no message of the agent's: what else the prompt it went into goes on from."""
        calls = self._forest.calls
        found = [self._echoed[other] for other, summaries in self._carried.items() if head in summaries]
        return next((id for id in found if id is not None and calls[id].ended_at <= calls[head].started_at), None)

    def _is_single(self, chain: list[str]) -> bool:
        return len(chain) == 1 and not self._forest.anchored[chain[0]]

    def _is_abandoned(self, chain: list[str]) -> bool:
        """A first reply that the client threw away: it asked again behind the same messages, and kept nothing of the reply."""
        return self._leads_nowhere(chain) and chain[0] in self._asked_again

    def _leads_nowhere(self, chain: list[str]) -> bool:
        return self._is_single(chain) and chain[0] not in self._summaries and chain[0] not in self._echoed.values()

    def _posted_behind(self, head: str) -> str | None:
        """The nearest call behind whose messages the prompt goes on, and whose reply the agent did not throw away."""
        parent = self._forest.calls[head].parent_id
        while parent is not None and (parent not in self._chain_of or self._leads_nowhere(self._chain_of[parent])):
            parent = self._forest.calls[parent].parent_id
        return parent

    def _last_of_voice(self, chain: list[str]) -> str | None:
        """The end of what the same agent, by its own name, said before: all of it with tools, and over before this began."""
        calls, head = self._forest.calls, self._forest.calls[chain[0]]
        if voice(head) is None:
            return None
        ends = [other[-1] for other in self._chains if voice(calls[other[0]]) == voice(head) and self._forest.has_tools(other[0])]
        ended = [id for id in ends if calls[id].ended_at <= head.started_at]
        return max(ended, key=lambda id: (calls[id].ended_at, id), default=None)

    def _callers(self, head: str) -> Collection[str]:
        """The calls of the agent that, by the client's own names, started this one."""
        speaker = self._forest.calls[head].speaker
        return {id for id in self._chain_of if voice(self._forest.calls[id]) in (None, speaker.parent or speaker.session)}

    def _started_by(self, head: str, callers: Collection[str]) -> str | None:
        return self.words.spawner(head, callers, exact=True) or self.words.spawner(head, callers, exact=False)
