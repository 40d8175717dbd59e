"""The interface between the tree attention and the kernels that compute it.

Invariant: all backends compute the same function: softmax attention of every position over what its layout lets it see.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from openforge.trees.layout import Layout

Attend = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""(query [1, H, N, D], key [1, K, M, D], value [1, K, M, E], scale) → [1, N, H, E], differentiable; M = carried + N, H a multiple of K."""

Backend = Callable[[Layout, torch.device], Attend]
"""What can be prepared once for all layers of a forward pass is prepared here."""
