"""Trees without contributions, and who sees whom in them, the slow way."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from openforge.types import TokenTree


def segment_tree(lengths: list[int], parents: list[int], depths: list[int]) -> TokenTree:
    no_ids, no_numbers = np.empty(0, np.int32), np.empty(0, np.float32)
    starts = np.cumsum([0, *lengths], dtype=np.int32)
    return TokenTree(
        tokens=np.zeros(starts[-1], np.int32),
        starts=starts,
        parents=np.array(parents, np.int32),
        depths=np.array(depths, np.int32),
        at=no_ids,
        targets=no_ids,
        logprobs=no_numbers,
        versions=no_ids,
        advantages=no_numbers,
        weights=no_numbers,
        rows=no_ids,
        rollout_ids=[],
    )


@st.composite
def pieces(draw: st.DrawFn, longest: int = 12) -> TokenTree:
    """Forests whose roots hang at falling depths, with segments of 1 … `longest` positions."""
    lengths: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    path: list[int] = []
    root_depth = draw(st.integers(0, 2 * longest))
    for _ in range(draw(st.integers(1, 12))):
        kept = draw(st.integers(0, len(path)))
        path = path[:kept]
        if path:
            depths.append(depths[path[-1]] + lengths[path[-1]])
        else:
            root_depth = draw(st.integers(0, root_depth))
            depths.append(root_depth)
        parents.append(path[-1] if path else -1)
        path.append(len(lengths))
        lengths.append(draw(st.integers(1, longest)))
    return segment_tree(lengths, parents, depths)


def seen(tree: TokenTree) -> np.ndarray:
    """bool [N, M]"""
    carried = int(tree.depths[tree.parents < 0].max(initial=0))
    visible = np.zeros((len(tree.tokens), carried + len(tree.tokens)), bool)
    for segment, (start, end) in enumerate(zip(tree.starts[:-1], tree.starts[1:], strict=True)):
        visible[start:end, carried + start : carried + end] = np.tri(end - start, dtype=bool)
        above = segment
        while tree.parents[above] >= 0:
            above = int(tree.parents[above])
            visible[start:end, carried + tree.starts[above] : carried + tree.starts[above + 1]] = True
        visible[start:end, : tree.depths[above]] = True
    return visible


def dense_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: np.ndarray, scale: float) -> torch.Tensor:
    """query [1, H, N, D], key [1, K, M, D], value [1, K, M, E], visible bool [N, M] → [1, N, H, E]."""
    groups = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(groups, 1).transpose(-1, -2) * scale
    weights = scores.masked_fill(~torch.from_numpy(visible), -torch.inf).softmax(-1)
    return (weights @ value.repeat_interleave(groups, 1)).transpose(1, 2)
