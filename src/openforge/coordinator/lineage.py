"""Which calls of a rollout belong together: calls -> typed lineages.

Invariant: every call is in exactly one lineage, and the answer depends on explicit parents, token prefixes and, between retries, the time a
reply was complete; never on the order calls arrived in.

A lineage is a chain of calls in which each literally extends the one before (prompt + reply). The rules, in order:

1. Anchor. A call's anchor is the deepest ancestor of whose reply its prompt keeps at least a token. It *extends* its anchor when it keeps
   all of it. (A recorded parent only says where the shared ids are stored: an edit may keep none of that parent's reply.)
2. Retry. Of calls with the same prompt ids, one of them marked as a retry, those with something anchored at them are what the agent went
   on with. If there are none, the last complete reply is (a failed one only if all failed). The others are RETRY lineages of one call.
3. Orphan, by failure. A call that was aborted or failed, with nothing anchored at it, is an ORPHAN of one call.
4. Chains. From the remaining calls, each chain goes on with the extension that has most calls under it; others start chains of their own.
5. Thread. Calls that share an explicit root are a thread. The main thread is that with the most calls; between equals, one that offers
   tools, then the most sampled tokens. Its first chain without an anchor is MAIN.
6. A chain at the root of another thread is SIDE if it is one call without tools in a lesser thread (a title, a topic check), else
   SUB_AGENT.
7. A chain further down is CONTINUATION if the client had rewritten history (compaction, dropped thoughts: it does not extend its anchor).
   If it extends it, it is a branch: ORPHAN when it is one call whose reply is in no later prompt, else SUB_AGENT.

Ties are broken by call id, so that the order is one and the same for the same calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from openforge.coordinator.forest import Forest
from openforge.types import Call, FinishReason, Fork, LineageKind

_FAILED = (FinishReason.ABORTED, FinishReason.ERROR)


@dataclass(frozen=True, slots=True)
class Lineage:
    kind: LineageKind
    call_ids: list[str]
    """A chain: each call's prompt begins with the whole sequence of the call before it."""


def lineages(calls: Sequence[Call]) -> list[Lineage]:
    """All calls of one rollout, in any order. MAIN comes first, and a lineage always after the one it hangs on.

    A rollout whose every call failed has no MAIN.
    """
    return lineages_of(Forest(calls))


def lineages_of(forest: Forest) -> list[Lineage]:
    alone = _retries(forest)
    for id, call in forest.calls.items():
        if call.finish in _FAILED and not forest.anchored[id] and id not in alone:
            alone[id] = LineageKind.ORPHAN
    chains = _chains(forest, alone)
    sizes = _thread_sizes(forest, chains)
    main = max(sizes, key=lambda root: (sizes[root], root), default=None)
    heads = [chain[0] for chain in chains if forest.root[chain[0]] == main and forest.anchor[chain[0]] is None]
    first = min(heads, key=lambda id: (forest.depth[id], id), default=None)

    found = [Lineage(kind, [id]) for id, kind in alone.items()]
    for chain in chains:
        if chain[0] == first:
            kind = LineageKind.MAIN
        elif chain[0] == forest.root[chain[0]] and main is not None:
            kind = LineageKind.SIDE if _is_side(forest, chain, sizes, main) else LineageKind.SUB_AGENT
        elif not forest.extends[chain[0]]:
            kind = LineageKind.CONTINUATION
        else:
            kind = LineageKind.ORPHAN if _is_single(forest, chain) else LineageKind.SUB_AGENT
        found.append(Lineage(kind, chain))
    return sorted(found, key=lambda lineage: (lineage.kind is not LineageKind.MAIN, forest.depth[lineage.call_ids[0]], lineage.call_ids[0]))


def _retries(forest: Forest) -> dict[str, LineageKind]:
    """The calls that were answered again, by rule 2."""
    lengths = {forest.prompt_length[id] for id, call in forest.calls.items() if call.fork is Fork.RETRY}
    groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for id in forest.calls:
        if forest.prompt_length[id] in lengths:
            groups[tuple(forest.sequence(id)[: forest.prompt_length[id]])].append(id)
    lost: dict[str, LineageKind] = {}
    for ids in groups.values():
        if not any(forest.calls[id].fork is Fork.RETRY for id in ids):
            continue
        kept = [id for id in ids if forest.anchored[id]] or [
            max(ids, key=lambda id: (forest.calls[id].finish not in _FAILED, forest.calls[id].ended_at, id))
        ]
        lost |= {id: LineageKind.RETRY for id in ids if id not in kept}
    return lost


def _chains(forest: Forest, alone: Collection[str]) -> list[list[str]]:
    """The calls that do not stand alone, cut into chains by rule 4."""
    weight = forest.weights(alone)
    heir: dict[str, str] = {}
    for id, anchor in forest.anchor.items():
        if anchor is not None and forest.extends[id] and id not in alone:
            best = heir.get(anchor)
            if best is None or (-weight[id], id) < (-weight[best], best):
                heir[anchor] = id
    chains = []
    for id in forest.calls.keys() - set(alone) - set(heir.values()):
        chain = [id]
        while chain[-1] in heir:
            chain.append(heir[chain[-1]])
        chains.append(chain)
    return chains


_Size = tuple[int, bool, int]


def _thread_sizes(forest: Forest, chains: list[list[str]]) -> dict[str, _Size]:
    """Explicit root -> (calls, offers tools, sampled tokens) of its thread, of calls that do not stand alone."""
    sizes: dict[str, _Size] = {}
    for chain in chains:
        for id in chain:
            calls, tools, tokens = sizes.get(forest.root[id], (0, _has_tools(forest.calls[forest.root[id]]), 0))
            sizes[forest.root[id]] = (calls + 1, tools, tokens + len(forest.calls[id].sampled))
    return sizes


def _is_side(forest: Forest, chain: list[str], sizes: dict[str, _Size], main: str) -> bool:
    return _is_single(forest, chain) and not _has_tools(forest.calls[chain[0]]) and sizes[chain[0]][:2] < sizes[main][:2]


def _is_single(forest: Forest, chain: list[str]) -> bool:
    return len(chain) == 1 and not forest.anchored[chain[0]]


def _has_tools(call: Call) -> bool:
    return bool(call.request.get("tools"))
