"""Models that compute in float64 throughout, as the truth that others are measured against.

Invariant: the same function as the model in float32; only the rounding differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel


class _Float64(TorchFunctionMode):
    """Whoever asks for float32 gets float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
        kwargs = {name: torch.float64 if value is torch.float32 else value for name, value in (kwargs or {}).items()}
        return func(*args, **kwargs)


def to_float64(model: PreTrainedModel) -> PreTrainedModel:
    """Convert `model` in place. Norms and routers, which round to float32 whatever they are given, do so no more; the tables of rotary
    positions stay as they are, since they are part of the function."""
    for module in model.modules():
        if type(module).__name__.endswith(("RMSNorm", "Router")):
            module.forward = _in_float64(module.forward)
    model.set_experts_implementation("eager")  # the others know no float64
    model.double()
    return model


def _in_float64(forward: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _Float64():
            return forward(*args, **kwargs)

    return call
