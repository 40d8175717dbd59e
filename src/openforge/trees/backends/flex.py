"""Tree attention by FlexAttention (torch.nn.attention.flex_attention): one fused kernel that skips the tiles nobody looks into.

Invariant: the tiles are those of the dense mask, full ones told apart, but found from the range of queries that see each key, in
O(keys + tiles touched).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from openforge.trees.backends.base import Attend
from openforge.trees.layout import Layout
from openforge.types import IntArray


def flex_backend(layout: Layout, device: torch.device) -> Attend:
    """A `Backend` for CUDA; on CPU it has no backward."""
    mask = block_mask(layout, device)

    def attend(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        output: Tensor = _compiled()(query, key, value, block_mask=mask, scale=scale, enable_gqa=True)
        return output.transpose(1, 2)

    return attend


def block_mask(layout: Layout, device: torch.device, size: int = 128) -> BlockMask:
    """Who sees whom, by tiles of `size` queries × `size` keys."""
    first, last = layout.queries()
    shape = (-(-layout.length // size), -(-len(first) // size))
    row, column, full = _tiles(first, last, layout.length, size)
    first_query, last_query = torch.from_numpy(first).to(device), torch.from_numpy(last).to(device)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (first_query[key] <= query) & (query < last_query[key])

    tables: dict[str, Any] = {}
    for kind, chosen in (("", ~full), ("full_", full)):
        by_column = np.lexsort((row[chosen], column[chosen]))
        tables[f"{kind}q_num_blocks"], tables[f"{kind}q_indices"] = _table(
            column[chosen][by_column], row[chosen][by_column], shape[::-1], device
        )
        by_row = np.lexsort((column[chosen], row[chosen]))
        tables[f"{kind}kv_num_blocks"], tables[f"{kind}kv_indices"] = _table(row[chosen][by_row], column[chosen][by_row], shape, device)
    return BlockMask(seq_lengths=(layout.length, len(first)), BLOCK_SIZE=(size, size), mask_mod=sees, **tables)


def _tiles(first: IntArray, last: IntArray, length: int, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Row and column of every tile in which somebody sees something, and whether everybody in it sees everything."""
    columns = np.arange(len(first)) // size
    top, bottom = first // size, -(-last // size)
    # Keys of a column come by rising `first`: a key opens a new run of tiles where all before it in the column have ended.
    count = length + 1
    reached = np.maximum.accumulate(bottom + columns * count) - columns * count
    opens = np.r_[True, (columns[1:] != columns[:-1]) | (top[1:] >= reached[:-1])]
    begins = np.flatnonzero(opens)
    heights = np.maximum.reduceat(bottom, begins) - top[begins]
    row = np.repeat(top[begins] - np.cumsum(heights) + heights, heights) + np.arange(heights.sum())
    column = np.repeat(columns[begins], heights)
    edges = np.flatnonzero(np.r_[True, columns[1:] != columns[:-1]])
    all_from, all_until = np.maximum.reduceat(first, edges), np.minimum.reduceat(last, edges)
    is_whole = (column + 1) * size <= len(first)
    full = is_whole & (row * size >= all_from[column]) & ((row + 1) * size <= all_until[column])
    return row, column, full


def _table(line: NDArray[np.int64], entry: NDArray[np.int64], shape: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Entries by line, as `BlockMask` wants them: how many int32 [1, 1, lines], which int32 [1, 1, lines, width]. `line` is sorted."""
    counts = np.bincount(line, minlength=shape[0])
    indices = np.zeros(shape, np.int32)
    indices[line, np.arange(len(line)) - (np.cumsum(counts) - counts)[line]] = entry
    return torch.from_numpy(counts.astype(np.int32)).to(device)[None, None], torch.from_numpy(indices).to(device)[None, None]


@cache
def _compiled() -> Any:
    """Compiled for all sizes, but anew where sizes are first equal (no carried keys) or one (few tiles): some ten times at most, which
    must not end in torch's limit."""
    return torch._dynamo.config.patch(recompile_limit=64)(torch.compile(flex_attention, dynamic=True, fullgraph=True))
