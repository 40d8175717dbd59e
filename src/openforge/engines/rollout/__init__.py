"""Rollout engines: token ids in, token ids out."""

from openforge.engines.rollout.torch import TorchEngine

__all__ = ["TorchEngine"]
