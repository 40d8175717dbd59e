"""The training engine: one process, one model, one optimizer step a call.

Invariant: the gradient of a step is that of the sum over all contributions of weight times token loss, however the trees are packed;
and a run that was saved and restored goes on bit for bit as if it had not stopped (nothing here draws random numbers).
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from openforge.engines.training import checkpoint
from openforge.engines.training.heads import check_head, token_logprobs
from openforge.engines.training.optimizer import learning_rate, make_optimizer
from openforge.engines.training.settings import TrainSettings
from openforge.rl.losses import LOSSES, policy_metrics
from openforge.trees import backends
from openforge.trees.forward import forward
from openforge.trees.pack import pack
from openforge.types import FloatArray, TokenTree, UserError, Weights

log = logging.getLogger(__name__)


class TrainEngine:
    """Trains the causal language model of a Hugging Face folder on token trees. Synchronous; use from one thread at a time."""

    def __init__(self, model_dir: Path | str, settings: TrainSettings, *, threads: int | None = None) -> None:
        """`threads`: how many a step uses; torch's default if None. `UserError` when the folder holds no model that can be trained."""
        self.settings = settings
        self.version = 0
        """Names the weights; a run may skip numbers, the schedule counts `steps`."""
        self.steps = 0
        self.skipped_steps = 0
        self._threads = threads
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model, self._small_files = checkpoint.load_model(Path(model_dir))
        check_head(self._model.config)
        self._model.to(self._device)
        self._backend = backends.choose("auto", self._device)
        self._compute_dtype = _compute_dtype(settings.dtype, self._device)
        self._model.eval()  # dropout would make the trainer disagree with the sampler
        if settings.activation_checkpointing:
            _checkpoint_activations(self._model)
        self._optimizer = make_optimizer(self._model, settings)

    @property
    def vocabulary(self) -> int:
        """How many token ids the model knows."""
        return int(self._model.config.vocab_size)

    @property
    def context_length(self) -> int:
        """How many tokens the model was made for."""
        return int(self._model.config.max_position_embeddings)

    @classmethod
    def restore(cls, folder: Path | str, settings: TrainSettings, *, threads: int | None = None) -> TrainEngine:
        """Go on from a checkpoint. `UserError`, naming the file, when one is missing or damaged."""
        document = checkpoint.verify(Path(folder))
        engine = cls(folder, settings, threads=threads)
        checkpoint.restore_optimizer(Path(folder), document, engine._model, engine._optimizer)
        engine.version, engine.steps, engine.skipped_steps = (int(document[key]) for key in ("version", "steps", "skipped_steps"))
        return engine

    def save(self, folder: Path | str) -> None:
        """Write a checkpoint, atomically: a Hugging Face folder that `restore` and transformers both read."""
        state = checkpoint.TrainerState(self.version, self.steps, self.skipped_steps)
        checkpoint.save(Path(folder), self._model, self._small_files, self._optimizer, state)

    def weights(self) -> Weights:
        """The parameters by name (float32, shared storage): they change with the next `step`, so copy what has to last."""
        return {name: tensor.detach() for name, tensor in self._model.state_dict().items()}

    def step(self, trees: Sequence[TokenTree], *, temperature: float = 1.0) -> dict[str, float]:
        """One optimizer step on an optimizer batch, whose contribution weights sum to 1. `version` grows by one.

        `temperature` is the one the rollouts were sampled at. Means are over contributions (trained tokens). Returned:
        `loss`; `grad_norm` before clipping; `lr`; `entropy` (nats); `ratio_mean`, `ratio_max`, `clip_fraction`, `kl` against the behaviour
        policy; `logprob_gap`, `logprob_gap_max`: |trainer's - sampler's log-probability| where both had the same weight version (absent
        if there is no such token); `tokens` (trained), `positions` (forwarded), `microbatches`, `seconds`,
        `tokens_per_second` (positions per second), `skipped` (1 when loss or gradient was not finite, or nothing was trained: the
        weights then stay as they were), `skipped_steps` (so far, for a number that was not finite).
        """
        started = time.perf_counter()
        self._use_threads()
        batches = [batch for batch in pack(trees, self.settings.tokens_per_microbatch) if len(batch.targets)]
        self._optimizer.zero_grad(set_to_none=True)
        sums = _Sums(self.version)
        loss = sum(self._accumulate(batch, temperature, sums) for batch in batches)
        grad_norm = float(torch.nn.utils.clip_grad_norm_(self._model.parameters(), self.settings.max_grad_norm)) if batches else 0.0
        lr = learning_rate(self.settings, self.steps)
        finite = math.isfinite(loss) and math.isfinite(grad_norm)
        if finite and batches:
            for group in self._optimizer.param_groups:
                group["lr"] = lr
            self._optimizer.step()
        elif not finite:
            self.skipped_steps += 1
            log.warning("step %d: loss %s, gradient norm %s: not finite, weights left as they were", self.steps, loss, grad_norm)
        self._optimizer.zero_grad(set_to_none=True)
        self.version += 1
        self.steps += 1
        positions = sum(len(batch.tokens) for batch in batches)
        seconds = time.perf_counter() - started
        return {
            "loss": float(loss),
            "grad_norm": grad_norm,
            "lr": lr,
            **sums.means(),
            "positions": float(positions),
            "microbatches": float(len(batches)),
            "skipped": float(not (finite and batches)),
            "skipped_steps": float(self.skipped_steps),
            "seconds": seconds,
            "tokens_per_second": positions / seconds,
        }

    def logprobs(self, tree: TokenTree, *, temperature: float = 1.0) -> FloatArray:
        """Log-probability of every contribution under the current weights: float32 [C]."""
        self._use_threads()
        with torch.no_grad():
            logprob, _ = self._evaluate(tree, temperature)
        values: FloatArray = logprob.cpu().numpy()
        return values

    def _accumulate(self, tree: TokenTree, temperature: float, sums: _Sums) -> float:
        logprob, entropy = self._evaluate(tree, temperature)
        behaviour, advantage, weight = (
            torch.from_numpy(array).to(self._device) for array in (tree.logprobs, tree.advantages, tree.weights)
        )
        token_loss = LOSSES[self.settings.loss](logprob, behaviour, advantage, clip_high=self.settings.clip_high)
        loss = (token_loss * weight).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        sums.add(tree, logprob.detach(), behaviour, entropy, self.settings.clip_high)
        return float(loss.detach())

    def _evaluate(self, tree: TokenTree, temperature: float) -> tuple[Tensor, Tensor]:
        vocabulary = self._model.config.vocab_size
        for name, ids in (("token", tree.tokens), ("target", tree.targets)):
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
                raise UserError(f"a tree holds {name} ids outside the model's vocabulary of {vocabulary}: was it sampled from this model?")
        low = self._compute_dtype != torch.float32
        with torch.autocast(self._device.type, self._compute_dtype) if low else contextlib.nullcontext():
            hidden = forward(self._model, tree, self._backend)
        head = self._model.get_output_embeddings()
        at, targets = (torch.from_numpy(array).long().to(self._device) for array in (tree.at, tree.targets))
        return token_logprobs(hidden, head.weight, getattr(head, "bias", None), at, targets, temperature or 1.0)

    def _use_threads(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)


class _Sums:
    """Metrics over the micro-batches of a step."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._totals: dict[str, float] = {}
        self._tokens = 0
        self._ratio_max = 0.0
        self._gaps: list[FloatArray] = []

    def add(self, tree: TokenTree, logprob: Tensor, behaviour: Tensor, entropy: Tensor, clip_high: float) -> None:
        values = {name: float(value) for name, value in policy_metrics(logprob, behaviour, clip_high).items()}
        self._ratio_max = max(self._ratio_max, values.pop("ratio_max"))
        for name, value in {**values, "entropy": float(entropy.sum())}.items():
            self._totals[name] = self._totals.get(name, 0.0) + value
        self._tokens += len(tree.targets)
        self._gaps.append((logprob - behaviour).abs().cpu().numpy()[tree.versions == self._version])

    def means(self) -> dict[str, float]:
        result = {name: value / self._tokens for name, value in self._totals.items()}
        if self._tokens:
            result["ratio_max"] = self._ratio_max
        gaps = np.concatenate(self._gaps) if self._gaps else np.empty(0, np.float32)
        if len(gaps):
            result |= {"logprob_gap": float(gaps.mean()), "logprob_gap_max": float(gaps.max())}
        return {**result, "tokens": float(self._tokens)}


def _checkpoint_activations(model: PreTrainedModel) -> None:
    """Recompute each layer in the backward pass. The layer alone is put in training mode: what it contains keeps its dropout off."""
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = module.gradient_checkpointing = True
            module._gradient_checkpointing_func = partial(recompute, use_reentrant=False)


def _compute_dtype(name: str, device: torch.device) -> torch.dtype:
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported() else torch.float32
