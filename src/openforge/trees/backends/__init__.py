"""Kernels of the tree attention, by name."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from openforge.trees.backends.base import Backend
from openforge.trees.backends.segments import segment_backend
from openforge.types import UserError

BACKENDS: Mapping[str, Backend] = {"segments": segment_backend}


def choose(name: str, device: torch.device) -> Backend:
    """The backend of that name, or the best for the device if the name is `auto`. `UserError` for what this machine cannot run."""
    if name == "auto":
        name = "segments"
    if name not in BACKENDS:
        raise UserError(f"there is no tree attention named {name}: choose one of auto, {', '.join(BACKENDS)}")
    return BACKENDS[name]
