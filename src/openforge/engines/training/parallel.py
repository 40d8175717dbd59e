"""Data parallelism: one process a rank, each with its share of the forest, all with the same weights.

Invariant: within `whole_weights` and `summed_gradients` no rank waits for another, so each may do as many passes as it has pieces, in
any order, or none. All communication is at their edges: weights are gathered at the start, gradients summed at the end.

Between steps, weights and optimizer state are sharded (FSDP2: Zhao et al. 2023, arXiv 2304.11277, as `torch.distributed.fsdp.fully_shard`).
"""

from __future__ import annotations

import atexit
import dataclasses
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from openforge.types import TokenTree, UserError

_RENDEZVOUS = ("RANK", "MASTER_ADDR", "MASTER_PORT")


class Alone:
    """One process: nothing to share."""

    index, count = 0, 1

    @contextmanager
    def whole_weights(self) -> Iterator[None]:
        """Every parameter is a whole tensor inside."""
        yield

    @contextmanager
    def summed_gradients(self) -> Iterator[None]:
        """`whole_weights`; at the end, gradients are those of all ranks added up."""
        yield

    def add_up(self, values: Tensor) -> Tensor:
        """The sum of all ranks' `values`, equal on all of them."""
        return values

    def check_same(self, forest: TokenTree) -> None:
        """Raise `UserError` unless all ranks were given the same."""

    def wait(self) -> None:
        """For all ranks."""


class Ranks(Alone):
    """The processes of `torchrun`, as its environment variables name them."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Shard `model`, which must be on its device; all ranks must have loaded the same."""
        if model.device.type == "cuda":
            torch.cuda.set_device(model.device)
        if not dist.is_initialized():
            dist.init_process_group("nccl" if model.device.type == "cuda" else "gloo")
            atexit.register(dist.destroy_process_group)
        self.index, self.count = dist.get_rank(), dist.get_world_size()
        self._model = model
        mesh = init_device_mesh(model.device.type, (self.count,))
        layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        for module in (*layers, model):
            fully_shard(module, mesh=mesh, reshard_after_forward=False)
        self._sharded: list[FSDPModule] = [module for module in model.modules() if isinstance(module, FSDPModule)]
        for module in self._sharded:
            # loss weights are normalised over the whole batch: sums, not means; gloo knows no other scaling
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        type(model)._touch = _touch
        register_fsdp_forward_method(model, "_touch")

    @contextmanager
    def whole_weights(self) -> Iterator[None]:
        for module in self._sharded:
            module.unshard()
        try:
            yield
        finally:
            for module in self._sharded:
                module.reshard()

    @contextmanager
    def summed_gradients(self) -> Iterator[None]:
        self._synchronise(False)
        # FSDP reduces at the end of a backward pass through its root, and takes for the root what runs first. What happens in between
        # is nested in this pass.
        end = self._model._touch()
        for module in self._sharded:
            module.unshard()
        yield
        for parameter in self._model.parameters():
            if parameter.grad is None:  # all ranks must reduce the same
                parameter.grad = torch.zeros_like(parameter)
        self._synchronise(True)
        end.backward()

    def _synchronise(self, now: bool) -> None:
        self._model.set_is_last_backward(now)
        self._model.set_requires_gradient_sync(now)
        self._model.set_reshard_after_backward(now)

    def add_up(self, values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values

    def check_same(self, forest: TokenTree) -> None:
        digest = hashlib.sha256()
        for field in dataclasses.fields(forest):
            digest.update(np.asarray(getattr(forest, field.name)).tobytes())
        digests: list[bytes] = [b""] * self.count
        dist.all_gather_object(digests, digest.digest())
        for rank, other in enumerate(digests):
            if other != digests[0]:
                raise UserError(f"rank {rank} was given other trees than rank 0: give every rank the same trees, in the same order")

    def wait(self) -> None:
        dist.barrier()


def join(model: PreTrainedModel) -> Alone:
    """This process' place among those that `torchrun` started."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return Alone()
    if missing := [name for name in _RENDEZVOUS if name not in os.environ]:
        raise UserError(f"WORLD_SIZE is set but {missing[0]} is not: start the ranks with torchrun, or unset WORLD_SIZE")
    return Ranks(model)


def device() -> torch.device:
    """This rank's."""
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else torch.device("cpu")


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that may be sharded; all ranks must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard(tensor: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a tensor that all ranks have, on the device of `like` and sharded as it is."""
    tensor = tensor.to(like.device)
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None) if isinstance(like, DTensor) else tensor


def _touch(model: PreTrainedModel) -> Tensor:
    """Zero, with a backward pass."""
    zero: Tensor = next(model.parameters()).flatten()[0] * 0.0
    return zero
