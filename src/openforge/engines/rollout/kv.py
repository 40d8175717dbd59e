"""Keys and values: one arena of token rows, cut into regions; and the cache of prefixes that lives in what running requests leave free.

Invariant: a cached block is found only through the chain of all tokens before it and the weight version that computed it, compared
exactly (no hashes), so keys and values of one version never serve another.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Sequence

import torch

BLOCK = 32
"""Tokens: the grain of regions and of cached prefixes."""


class Regions:
    """Which of `size` rows are free. Everything is in multiples of BLOCK."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.free_rows = size
        self._free: list[tuple[int, int]] = [(0, size)]

    def take(self, count: int, *, high: bool = False) -> int | None:
        """The first row of `count` adjacent ones, lowest first (or highest first), or None."""
        for at in reversed(range(len(self._free))) if high else range(len(self._free)):
            start, length = self._free[at]
            if length >= count:
                taken = start + length - count if high else start
                del self._free[at]
                if length > count:
                    self._free.insert(at, (start if high else start + count, length - count))
                self.free_rows -= count
                return taken
        return None

    def give_back(self, start: int, count: int) -> None:
        self.free_rows += count
        insort(self._free, (start, count))
        merged: list[tuple[int, int]] = []
        for begin, length in self._free:
            if merged and sum(merged[-1]) == begin:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((begin, length))
        self._free = merged


class Arena:
    """Keys and values of `size` tokens in every layer.

    `keys[layer]` is [size, kv_heads * head_dim], `values[layer]` likewise: a token's row holds all its heads, so that writing, copying and
    caching a run of tokens touches one contiguous piece a layer.
    """

    def __init__(self, size: int, shapes: Sequence[tuple[int, int, int]], dtype: torch.dtype, device: torch.device) -> None:
        self.keys = [torch.zeros(size, heads * key, dtype=dtype, device=device) for heads, key, _ in shapes]
        self.values = [torch.zeros(size, heads * value, dtype=dtype, device=device) for heads, _, value in shapes]

    def copy(self, source: Sequence[int], target: int) -> None:
        """Copy the rows `source` to the rows from `target` on; the two do not overlap."""
        index = torch.tensor(source, device=self.keys[0].device)
        for rows in (*self.keys, *self.values):
            rows[target : target + len(source)] = rows.index_select(0, index)


class KV:
    """The arena with its free list and its prefix cache (least recently used goes first)."""

    def __init__(self, arena: Arena, size: int, *, cache: bool) -> None:
        self.arena = arena
        self.regions = Regions(size)
        self.caching = cache
        self._next_id = 0
        self._blocks: OrderedDict[tuple[int, tuple[int, ...]], tuple[int, int]] = OrderedDict()

    def reserve(self, count: int, *, high: bool = False) -> int | None:
        """A region of `count` rows; cached blocks make way for it."""
        if count > self.regions.free_rows + BLOCK * len(self._blocks):
            return None
        while (start := self.regions.take(count, high=high)) is None and self._blocks:
            self._evict()
        return start

    def release(self, start: int, count: int) -> None:
        self.regions.give_back(start, count)

    def match(self, tokens: Sequence[int], version: int) -> list[int]:
        """The arena row of each leading token that is cached: as many as match, in whole blocks."""
        chain = self._chain(tokens, version)
        return [row for key in chain for row in range(self._blocks[key][1], self._blocks[key][1] + BLOCK)]

    def insert(self, tokens: Sequence[int], version: int, rows: Sequence[int]) -> None:
        """Cache `tokens`, whose keys and values lie in the arena at `rows`; a last incomplete block is left out."""
        if not self.caching:
            return
        chain = self._chain(tokens, version)
        parent = self._blocks[chain[-1]][0] if chain else -1 - version
        for at in range(len(chain) * BLOCK, len(tokens) - BLOCK + 1, BLOCK):
            while (start := self.regions.take(BLOCK, high=True)) is None and self._blocks:
                if next(iter(self._blocks)) in chain:
                    return
                self._evict()
            if start is None:
                return
            self.arena.copy(rows[at : at + BLOCK], start)
            key = (parent, tuple(tokens[at : at + BLOCK]))
            parent, self._next_id = self._next_id, self._next_id + 1
            self._blocks[key] = (parent, start)
            chain.append(key)
            self._touch(chain)

    def clear(self) -> None:
        while self._blocks:
            self._evict()

    def _chain(self, tokens: Sequence[int], version: int) -> list[tuple[int, tuple[int, ...]]]:
        chain: list[tuple[int, tuple[int, ...]]] = []
        parent = -1 - version
        for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
            key = (parent, tuple(tokens[at : at + BLOCK]))
            if key not in self._blocks:
                break
            parent = self._blocks[key][0]
            chain.append(key)
        self._touch(chain)
        return chain

    def _touch(self, chain: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        # Ends with the root: a block never outlives its parent, so no block becomes unreachable.
        for key in reversed(chain):
            self._blocks.move_to_end(key)

    def _evict(self) -> None:
        _, (_, start) = self._blocks.popitem(last=False)
        self.regions.give_back(start, BLOCK)
