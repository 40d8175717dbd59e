"""Kernels of the tree attention, by name."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from openforge.trees.backends.base import Backend
from openforge.trees.backends.flex import flex_backend
from openforge.trees.backends.magi import check_magi, magi_backend
from openforge.trees.backends.segments import segment_backend
from openforge.types import UserError

BACKENDS: Mapping[str, Backend] = {"segments": segment_backend, "flex": flex_backend, "magi": magi_backend}


def choose(name: str, device: torch.device) -> Backend:
    """The backend of that name, or the one for the device if the name is `auto`. `UserError` for what this machine cannot train with."""
    if name == "auto":
        name = "flex" if device.type == "cuda" else "segments"
    if name == "flex" and device.type != "cuda":
        raise UserError(f"train.attention: flex has no backward pass on {device.type}: set it to auto")
    if name == "magi":
        check_magi(device)
    return BACKENDS[name]
