"""The `train` section of a run file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from openforge.rl.advantages import Normalisation
from openforge.rl.aggregation import Aggregation
from openforge.types import Settings


class TrainSettings(Settings):
    """How the policy is trained. Learning-rate steps count optimizer steps."""

    loss: Literal["cispo", "reinforce", "nll"] = "cispo"
    clip_high: float = Field(default=4.0, gt=0)
    """CISPO: the importance weight is clipped at 1 + clip_high. ScaleRL (arXiv 2510.13786) finds 4 to 8 equally good."""
    aggregation: Aggregation = "token"
    advantage: Normalisation = "std"
    groups_per_step: int = Field(default=4, ge=1)
    steps: int = Field(default=100, ge=1)
    learning_rate: float = Field(default=1e-5, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """From the end of warm-up to `steps`; linear and cosine end at 0."""
    weight_decay: float = Field(default=0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: float = Field(default=1.0, gt=0)
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the forward pass; weights and optimizer state are float32 always. `auto`: bfloat16 where the hardware multiplies it."""
    activation_checkpointing: bool = False
    layout: Literal["auto", "tree", "rows"] = "auto"
    """`tree` shares all prefixes, `rows` none, `auto` those for which that is the cheaper by the cost model. The loss is the same."""
    tokens_per_microbatch: int = Field(default=8192, ge=1)
    attention: Literal["auto", "segments", "flex", "magi"] = "auto"
    """The kernel of the tree attention. `auto`: `flex` on CUDA, else `segments`."""
    checkpoint_every: int = Field(default=10, ge=1)
    """In optimizer steps."""
