"""The model folder that a benchmark measures."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.utils import logging as hf_logging

from openforge.types import UserError


@contextmanager
def model_folder(model: Path | None, default: PretrainedConfig) -> Iterator[Path]:
    """`model`, or a temporary folder with random weights of the architecture `default`. `UserError` where there is no model."""
    if model is not None:
        if not (model / "config.json").is_file():
            raise UserError(f"{model}: no model here to measure; fetch one with `openforge models fetch`, or name another folder")
        yield model
        return
    hf_logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(default, dtype=torch.float32).save_pretrained(folder)
        yield Path(folder)
