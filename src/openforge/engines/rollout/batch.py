"""Turns the scheduler's work into one step: flat tensors for the model, and the plan attention follows.

Invariant: tokens that decode come first, ordered by where their regions lie, so that neighbours are attended in one batched call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from openforge.engines.rollout.attention import Chunk, Rows, Shared, Step
from openforge.engines.rollout.kv import Arena
from openforge.engines.rollout.scheduler import Piece, Request, Work

_MAX_HOLES = 2
"""Foreign regions between two neighbours that are attended along rather than starting another call."""


def build(work: Sequence[Work], arena: Arena) -> tuple[Step, torch.Tensor, list[Request]]:
    """The step, and the indices of its tokens that sample, int64, with their requests in the same order."""
    device = arena.keys[0].device

    def tensor(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    decode = sorted((w for w in work if w.count == 1 and w.request), key=lambda w: (w.piece.capacity, w.piece.start))
    prefill = [w for w in work if w.count > 1 or not w.request]
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    chunks: list[Chunk] = []
    sampling: list[int] = []
    requests: list[Request] = []
    for item in (*decode, *prefill):
        piece, begin = item.piece, len(ids)
        ids += piece.tokens[piece.computed : piece.computed + item.count]
        positions += range(piece.computed, piece.computed + item.count)
        slots += range(piece.start + piece.held, piece.start + piece.held + item.count)
        if item.count > 1 or not item.request:
            prefix = (piece.prefix.start, len(piece.prefix.tokens)) if piece.prefix else None
            chunks.append(Chunk(begin, len(ids), piece.start, piece.held, prefix))
        if item.request:
            sampling.append(len(ids) - 1)
            requests.append(item.request)

    members: dict[int, list[int]] = {}
    prefixes: dict[int, Piece] = {}
    for index, item in enumerate(decode):
        if item.piece.prefix:
            prefixes[id(item.piece.prefix)] = item.piece.prefix
            members.setdefault(id(item.piece.prefix), []).append(index)
    shared = [Shared(tensor(indices), prefixes[key].start, len(prefixes[key].tokens)) for key, indices in members.items()]
    step = Step(arena, tensor(ids), tensor(positions), tensor(slots), _rows([w.piece for w in decode], device), chunks, shared)
    return step, tensor(sampling), requests


def _rows(pieces: Sequence[Piece], device: torch.device) -> list[Rows]:
    """Group neighbours of equal capacity: regions a whole number of strides apart, with few foreign ones between."""
    rows: list[Rows] = []
    begin = 0
    for end in range(1, len(pieces) + 1):
        if end < len(pieces):
            stride = pieces[begin].capacity
            gap, rest = divmod(pieces[end].start - pieces[end - 1].start, stride)
            if pieces[end].capacity == stride and not rest and gap - 1 <= _MAX_HOLES:
                continue
        group = pieces[begin:end]
        stride = group[0].capacity
        places = [(p.start - group[0].start) // stride for p in group]
        lengths = torch.ones(places[-1] + 1, dtype=torch.int64)
        lengths[places] = torch.tensor([p.held + 1 for p in group])
        pick = torch.tensor(places, device=device) if len(places) <= places[-1] else None
        rows.append(Rows(begin, end, group[0].start, stride, places[-1] + 1, pick, lengths.to(device), max(p.held for p in group) + 1))
        begin = end
    return rows
