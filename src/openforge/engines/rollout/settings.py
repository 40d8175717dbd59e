"""Settings of the embedded torch rollout engine: its part of a run file's `rollout` section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from openforge.types import Settings

DType = Literal["auto", "float32", "bfloat16"]


class TorchEngineSettings(Settings):
    """How `TorchEngine` computes and how much memory it may hold."""

    dtype: DType = "auto"
    """Of the model's body; the head is float32 always. `auto` is bfloat16 where the hardware multiplies it natively, else float32."""
    max_batch: int = Field(default=32, ge=1)
    """Requests that decode together; more wait their turn."""
    kv_tokens: int = Field(default=65_536, ge=64)
    """Tokens whose keys and values fit, running and cached together. It bounds the context as well."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of torch; None leaves torch's own choice. A process has one such number."""
    prefix_cache: bool = True
    """Keep keys and values of finished prompts and replies for later prompts that begin with them."""
