"""Rollout engines: token ids in, token ids out."""

from openforge.engines.rollout.torch import TorchEngine
from openforge.engines.rollout.vllm import VllmEngine

__all__ = ["TorchEngine", "VllmEngine"]
