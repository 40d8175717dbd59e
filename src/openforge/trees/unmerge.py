"""Values of contributions → ordinary rows, one per rollout.

Invariant: a row holds its rollout's trained tokens in the order they were built, so that no consumer of a row knows that trees exist.
"""

from __future__ import annotations

import numpy as np

from openforge.types import FloatArray, TokenTree


def unmerge(tree: TokenTree, values: FloatArray) -> dict[str, FloatArray]:
    """Gather `values` (float32 [C], one per contribution, such as log-probabilities) per rollout id."""
    assert len(values) == len(tree.rows)
    order = np.argsort(tree.rows, kind="stable")
    bounds = np.searchsorted(tree.rows[order], np.arange(len(tree.rollout_ids) + 1))
    return {rollout_id: values[order[bounds[i] : bounds[i + 1]]] for i, rollout_id in enumerate(tree.rollout_ids)}
