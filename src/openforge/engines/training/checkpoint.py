"""A training checkpoint on disk: a Hugging Face folder that also holds the optimizer's state.

Invariant: a folder under its final name is complete. It is written beside that name, flushed to disk and renamed; a crash before the
rename leaves what was there before.

Files beside those of the model and its tokenizer: `optimizer.safetensors` (first and second moments by parameter name) and
`trainer.json` (version, step counts, and a CRC-32 of every tensor file).
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as hf_logging

from openforge.engines.training.parallel import shard, whole
from openforge.trees.architecture import check_config
from openforge.trees.attention import BACKEND
from openforge.types import UserError

OPTIMIZER_FILE = "optimizer.safetensors"
TRAINER_FILE = "trainer.json"
_NOT_COPIED = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class TrainerState:
    version: int
    steps: int
    skipped_steps: int


def load_model(folder: Path) -> tuple[PreTrainedModel, dict[str, bytes]]:
    """The causal language model in float32 with the tree attention backend, and the folder's small files (tokenizer, templates)."""
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} is not a model folder (no config.json in it): set model.path to a Hugging Face model folder")
    hf_logging.disable_progress_bar()
    try:
        model: PreTrainedModel
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=BACKEND, output_loading_info=True
        )
    except UserError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError, StrictDataclassError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"the model in {folder} cannot be loaded: {reason}") from error
    check_config(model.config)
    if missing := sorted(loading["missing_keys"]):  # transformers fills them with random numbers
        raise UserError(f"the model in {folder} lacks {len(missing)} tensors ({missing[0]}, …): fetch it again, or mend its config.json")
    if getattr(model.config, "quantization_config", None):
        raise UserError(f"the model in {folder} is quantized (quantization_config): training needs the weights it was made from")
    small = {
        file.name: file.read_bytes()
        for file in sorted(folder.iterdir())
        if file.is_file() and file.suffix not in _NOT_COPIED and not file.name.endswith(".index.json") and file.name != TRAINER_FILE
    }
    return model, small


def save(
    folder: Path,
    model: PreTrainedModel,
    small_files: Mapping[str, bytes],
    optimizer: torch.optim.Optimizer,
    state: TrainerState,
    *,
    write: bool = True,
) -> None:
    """Write the checkpoint; `folder` is replaced if it exists. Where the model is sharded, all ranks must call, and one writes."""
    weights = _gather(_unique(model.state_dict(keep_vars=True)), write)
    moments, steps = _optimizer_state(model, optimizer)
    moments = _gather(moments, write)
    if not write:
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    model.save_pretrained(scratch, state_dict=weights)
    for name, content in small_files.items():
        if name != "config.json":
            (scratch / name).write_bytes(content)
    save_file(moments, scratch / OPTIMIZER_FILE)
    checksums = {file.name: _crc32(file) for file in sorted(scratch.glob("*.safetensors"))}
    document = {
        "version": state.version,
        "steps": state.steps,
        "skipped_steps": state.skipped_steps,
        "optimizer_steps": steps,
        "crc32": checksums,
    }
    (scratch / TRAINER_FILE).write_text(json.dumps(document, indent=1))
    for file in scratch.iterdir():
        _flush(file)
    _flush(scratch)
    replaced = folder.with_name(f".{folder.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if folder.exists():
        folder.rename(replaced)
    scratch.rename(folder)
    _flush(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def verify(folder: Path) -> dict[str, Any]:
    """The contents of `trainer.json`, once every file it names is there and whole; otherwise `UserError`, naming the file."""
    file = folder / TRAINER_FILE
    try:
        document: dict[str, Any] = json.loads(file.read_text())
        checksums = dict(document["crc32"])
        int(document["version"]), int(document["steps"]), int(document["skipped_steps"]), dict(document["optimizer_steps"])
    except FileNotFoundError:
        raise UserError(f"{folder} is not a training checkpoint (no {TRAINER_FILE} in it)") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{file} is damaged") from None
    for name, expected in checksums.items():
        if not (folder / name).is_file():
            raise UserError(f"{folder / name} is missing")
        if _crc32(folder / name) != expected:
            raise UserError(f"{folder / name} is damaged (its checksum is wrong)")
    return document


def restore_optimizer(folder: Path, document: Mapping[str, Any], model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> None:
    """Fill a fresh optimizer of `model` with the state saved in `folder`."""
    moments = load_file(folder / OPTIMIZER_FILE)
    steps = document["optimizer_steps"]
    for name, parameter in model.named_parameters():
        if name in steps:
            optimizer.state[parameter] = {
                "step": torch.tensor(float(steps[name]), device=parameter.device),
                **{moment: shard(moments[f"{moment}.{name}"], like=parameter) for moment in _MOMENTS},
            }


def _optimizer_state(model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, int]]:
    moments: dict[str, Tensor] = {}
    steps: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter)
        if state:
            steps[name] = int(state["step"])
            moments.update({f"{moment}.{name}": state[moment] for moment in _MOMENTS})
    return moments, steps


def _unique(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tied weights under their first name only."""
    names = {id(tensor): name for name, tensor in reversed(list(tensors.items()))}
    return {name: tensor for name, tensor in tensors.items() if names[id(tensor)] == name}


def _gather(tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """Whole, on the CPU, one after the other; none where they are not kept."""
    gathered: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        entire = whole(tensor.detach())
        if keep:
            gathered[name] = entire.cpu().contiguous()
    return gathered


def _crc32(file: Path) -> int:
    value = 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 22):
            value = zlib.crc32(block, value)
    return value


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
