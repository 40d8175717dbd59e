"""Which calls of a rollout belong together, and who speaks in them: calls -> typed lineages.

Invariant: every call is in exactly one lineage, and what it is called follows from the client's own ids, then from token prefixes, then
from rules over text, tools and size; never from the order calls arrived in. Times serve as causes only: nothing goes on from a reply that
was not there yet.

1. Alone (`chains.py`): lost retries; calls that the client itself names side calls; aborted or failed calls nothing was built on: ORPHAN.
2. Chains (`chains.py`): each chain goes on with the extension that has most calls under it; other extensions start chains of their own.
3. Origins (`origins.py`): a chain is a SUB_AGENT that some call started, a CONTINUATION of some call (a compaction, an edited history), or
   an ORPHAN (a branch, or a first reply, that the agent threw away). A chain without an origin is the root of a thread.
4. MAIN is the root whose thread, with all that continues it, has the most calls; between equals, one that offers tools; then one that is
   not asked for a title or the like; then the one with the most sampled tokens.
5. Another root is SIDE if it is one call without tools in a lesser thread (a title, a topic check), else the SUB_AGENT of nobody known.

Ties are broken by call id, so that the order is one and the same for the same calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from openforge.coordinator.chains import chains_of, set_apart
from openforge.coordinator.forest import Forest
from openforge.coordinator.lineage import Evidence, Lineage
from openforge.coordinator.origins import Origins
from openforge.coordinator.words import voice
from openforge.types import Call, LineageKind

PURPOSES = {"title": "title", "summar": "summary", "classif": "classifier", "topic": "classifier"}
"""What stands in the instruction of a side call -> what it is for."""

_Size = tuple[int, bool, bool, int, str]


def lineages(calls: Sequence[Call]) -> list[Lineage]:
    """All calls of one rollout, in any order. MAIN comes first; the others by depth and id.

    A rollout whose every call failed or stood aside has no MAIN.
    """
    return lineages_of(Forest(calls))


def lineages_of(forest: Forest) -> list[Lineage]:
    alone = set_apart(forest)
    chains = chains_of(forest, alone)
    origins = Origins(forest, chains)
    found = {chain[0]: origins.of(chain) for chain in chains}
    sizes = _thread_sizes(forest, chains, found, origins)
    main = max(sizes, key=lambda head: sizes[head], default=None)
    for chain in chains:
        head = chain[0]
        if head == main:
            evidence = Evidence.RULE if len(sizes) > 1 else Evidence.IDS if voice(forest.calls[head]) else Evidence.PREFIX
            found[head] = Lineage(LineageKind.MAIN, chain, evidence=evidence)
        elif found[head] is None:
            assert main is not None
            is_side = len(chain) == 1 and not forest.anchored[head] and not forest.has_tools(head) and sizes[head][:3] < sizes[main][:3]
            kind = LineageKind.SIDE if is_side else LineageKind.SUB_AGENT
            found[head] = Lineage(kind, chain, None, _purpose(origins, head) if is_side else None, Evidence.RULE)
    named = [*alone.values(), *filter(None, found.values())]
    return sorted(named, key=lambda lineage: (lineage.kind is not LineageKind.MAIN, forest.depth[lineage.call_ids[0]], lineage.call_ids[0]))


def _thread_sizes(forest: Forest, chains: Sequence[list[str]], found: dict[str, Lineage | None], origins: Origins) -> dict[str, _Size]:
    """Root of a thread -> its size, by which the main one is chosen."""
    head_of = {id: chain[0] for chain in chains for id in chain}
    calls, tokens = dict.fromkeys((head for head in found if found[head] is None), 0), dict.fromkeys(found, 0)
    roots = _roots(found, head_of)
    for chain in chains:
        root = roots[chain[0]]
        if root in calls:
            calls[root] += len(chain)
            tokens[root] += sum(len(forest.calls[id].sampled) for id in chain)
    return {
        head: (count, forest.has_tools(head), _purpose(origins, head) is None or forest.has_tools(head), tokens[head], head)
        for head, count in calls.items()
    }


def _roots(found: dict[str, Lineage | None], head_of: dict[str, str]) -> dict[str, str]:
    """Chain -> the first of its thread: that of the agent which goes on there, or threw a branch away there."""
    roots: dict[str, str] = {}
    for head in found:
        path = {head: None}
        while head not in roots and (above := _above(found[head], head_of)) is not None and above not in path:
            head = above
            path[head] = None
        roots |= dict.fromkeys(path, roots.get(head, head))
    return roots


def _above(lineage: Lineage | None, head_of: dict[str, str]) -> str | None:
    """The chain it belongs to; None where a thread begins."""
    if lineage is None or lineage.of is None:
        return None
    if lineage.kind is LineageKind.SUB_AGENT and lineage.evidence is not Evidence.PREFIX:
        return None
    return head_of[lineage.of]


def _purpose(origins: Origins, head: str) -> str | None:
    instruction = origins.words.instruction(head).lower()
    return next((purpose for word, purpose in PURPOSES.items() if word in instruction), None)
