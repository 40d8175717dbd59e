"""A Hugging Face causal language model, loaded for rollouts: flat steps in, float32 logits out, weights replaced in place.

Invariant: the model's own code runs unchanged; the engine reaches it only through transformers' attention interface. The head multiplies in
float32 whatever the body's dtype is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from openforge.engines.rollout.attention import NAME, Probe, Step, register
from openforge.types import UserError, Weights

DType = Literal["auto", "float32", "bfloat16"]
"""Of the model's body; `auto` is bfloat16 where the hardware multiplies it natively, else float32."""


class Model:
    """`shapes[layer]` is (kv_heads, key_dim, value_dim); `context` the most tokens the model was made for."""

    def __init__(self, path: Path, dtype: DType) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = _resolve(dtype, self.device)
        self._model = _load(path, self.dtype)
        self._model.to(self.device)
        self._targets = self._weight_targets()
        text = self._model.config.get_text_config()
        self.context: int = text.max_position_embeddings
        self.vocabulary: int = self._model.get_input_embeddings().weight.shape[0]
        probe = Probe()
        try:
            self._forward(
                torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), probe
            )
        except NotImplementedError as error:
            raise UserError(f"{path}: the torch rollout engine cannot run this model: {error}") from error
        if sorted(probe.shapes) != list(range(text.num_hidden_layers)):
            raise UserError(f"{path}: the torch rollout engine needs attention in every layer, and {text.model_type} has others")
        self.shapes = [probe.shapes[layer] for layer in range(text.num_hidden_layers)]
        self.windowed = probe.windowed

    def logits(self, step: Step, sampling: Tensor) -> Tensor:
        """Float32 [len(sampling), vocabulary] at the step's tokens `sampling` (int64 indices)."""
        return self._forward(step.ids.unsqueeze(0), step.positions.unsqueeze(0), sampling, step)

    def check(self, weights: Weights) -> None:
        """Raise ValueError unless `weights` are this model's, by name and shape. A tied name may be left out."""
        missing = [name for name, targets in self._targets.items() if targets and name not in weights]
        unknown = [name for name in weights if name not in self._targets]
        if missing or unknown:
            raise ValueError(f"weights do not fit the model: {_some('missing', missing)}{_some('unknown', unknown)}nothing was changed")
        for name, tensor in weights.items():
            for target in self._targets[name]:
                if tensor.shape != target.shape:
                    raise ValueError(
                        f"weight {name} has shape {list(tensor.shape)}, the model has {list(target.shape)}; nothing was changed"
                    )

    def install(self, weights: Weights) -> None:
        """Copy in weights that `check` let pass."""
        with torch.no_grad():
            for name, tensor in weights.items():
                for target in self._targets[name]:
                    target.copy_(tensor)

    def _forward(self, ids: Tensor, positions: Tensor, sampling: Tensor, step: Step | Probe) -> Tensor:
        with torch.inference_mode():
            output = self._model(
                input_ids=ids.to(self.device),
                position_ids=positions.to(self.device),
                use_cache=False,
                logits_to_keep=sampling.to(self.device),
                rollout_step=step,
            )
            logits: Tensor = output.logits[0]
            return logits.float()

    def _weight_targets(self) -> dict[str, list[Tensor]]:
        """Name to the tensors it is copied into: none for a name tied to another, and the head's own copy for the name it is tied to."""
        tensors = self._model.state_dict()
        aliases: dict[str, str] = getattr(self._model, "all_tied_weights_keys", None) or {}
        targets: dict[str, list[Tensor]] = {name: [] if name in aliases else [tensors[name]] for name in tensors}
        for alias, source in aliases.items():
            if alias in tensors and tensors[alias].data_ptr() != tensors[source].data_ptr():
                targets[source].append(tensors[alias])
        return targets


def _resolve(dtype: DType, device: torch.device) -> torch.dtype:
    if dtype != "auto":
        return torch.float32 if dtype == "float32" else torch.bfloat16
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported()
    else:
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if native else torch.float32


def _load(path: Path, dtype: torch.dtype) -> Any:
    if not (path / "config.json").is_file():
        raise UserError(f"{path}: no model here (no config.json); give the folder of a Hugging Face causal language model")
    register()
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        model, info = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype="auto", attn_implementation=NAME, local_files_only=True, output_loading_info=True
        )
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{path}: cannot load a causal language model: {first}") from error
    if info["missing_keys"]:
        raise UserError(f"{path}: the checkpoint lacks {_some('weights', sorted(info['missing_keys']))}it would run with random numbers")
    if not model._supports_attention_backend:
        raise UserError(
            f"{path}: {config.model_type} does not use transformers' attention interface; the torch rollout engine cannot run it"
        )
    model.requires_grad_(False)
    head = model.get_output_embeddings()
    if dtype is not torch.float32 and head is not None:
        for name, parameter in head.named_parameters(recurse=False):
            # A copy of its own: a tied embedding goes on in the body's dtype.
            setattr(head, name, nn.Parameter(parameter.detach().float().clone(), requires_grad=False))
        head.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(), *inputs[1:]))
    kept = set() if head is None else {id(parameter) for parameter in head.parameters()}
    for parameter in model.parameters():
        # Parameters only: buffers (rotary frequencies) keep their float32.
        if dtype is torch.float32 or id(parameter) not in kept:
            parameter.data = parameter.data.to(dtype)
    if not torch.cuda.is_available():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                # Stored input-major, a matrix product with few rows is up to a quarter faster on CPUs: the library need not repack it.
                module.weight.data = module.weight.data.t().contiguous().t()
    return model.eval()


def _some(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{what} {', '.join(names[:3])}{more}; "
