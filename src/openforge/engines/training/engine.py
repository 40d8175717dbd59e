"""The training engine: one model, one optimizer step a call, in one process or in one process a rank.

Invariant: the gradient of a step is that of the sum over all contributions of weight times token loss, however the trees are laid out, cut
into pieces and split between ranks; and a run that was saved and restored goes on bit for bit as if it had not stopped (nothing here
draws random numbers or decides by a clock).
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from openforge.engines.training import checkpoint, parallel
from openforge.engines.training.heads import check_head, token_logprobs
from openforge.engines.training.metrics import token_losses, token_metrics
from openforge.engines.training.optimizer import learning_rate, make_optimizer
from openforge.engines.training.settings import TrainSettings
from openforge.engines.training.work import Speed, Work
from openforge.trees import backends
from openforge.trees.carry import Memory, walk
from openforge.trees.cost import Cost
from openforge.trees.decide import decide, unshare
from openforge.trees.forward import forward
from openforge.trees.merge import merge
from openforge.trees.partition import Piece, partition
from openforge.trees.split import split
from openforge.trees.unmerge import unmerge
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
        self._device = parallel.device()
        self._model, self._small_files = checkpoint.load_model(Path(model_dir))
        check_head(self._model.config)
        self._model.to(self._device)
        self._backend = backends.choose(settings.attention, self._device)
        self._compute_dtype = _compute_dtype(settings.dtype, self._device)
        self._model.eval()  # dropout would make the trainer disagree with the sampler
        if settings.activation_checkpointing:
            _checkpoint_activations(self._model)
        self._cost = Cost.of(self._model, checkpointing=settings.activation_checkpointing)
        self._speed = Speed()
        self._ranks = parallel.join(self._model)
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
        checkpoint.save(Path(folder), self._model, self._small_files, self._optimizer, state, write=self._ranks.index == 0)
        self._ranks.wait()

    def weights(self) -> Weights:
        """The parameters by name (float32; with one rank, shared storage): they change with the next `step`, so copy what has to last."""
        return {name: parallel.whole(tensor.detach()) for name, tensor in self._model.state_dict().items()}

    def step(self, trees: Sequence[TokenTree], *, temperature: float = 1.0) -> dict[str, float]:
        """One optimizer step on an optimizer batch, whose contribution weights sum to 1. `version` grows by one.

        `temperature` is the one the rollouts were sampled at. Means are over contributions (trained tokens). Returned:
        `loss`; `grad_norm` before clipping; `lr`; `entropy` (nats); `ratio_mean`, `ratio_max`, `clip_fraction`, `kl` against the behaviour
        policy; `logprob_gap`, `logprob_gap_max`: |trainer's - sampler's log-probability| where both had the same weight version (absent
        if there is no such token); `tokens` (trained), `positions` (forwarded), `row_positions` and `shared` (as `Work.metrics`), `pieces`
        (forward passes), `predicted_seconds` and `prediction_error` (as `Speed.measure`), `seconds`, `tokens_per_second` (positions per
        second), `skipped` (1 when loss or gradient was not finite, or nothing was trained: the weights then stay as they were),
        `skipped_steps` (so far, for a number that was not finite).

        All ranks must be given the same trees, and all return the same, but for what was timed.
        """
        started = time.perf_counter()
        self._use_threads()
        forest = merge(trees)
        self._optimizer.zero_grad(set_to_none=True)
        logprob, entropy, work = self._walk(forest, temperature)
        metrics = token_metrics(forest, logprob, entropy, self.version, self.settings)
        passed = time.perf_counter() - started
        loss, trained = metrics["loss"], bool(len(forest.targets))
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self.settings.max_grad_norm)
        grad_norm = float(parallel.whole(norm))
        lr = learning_rate(self.settings, self.steps)
        finite = math.isfinite(loss) and math.isfinite(grad_norm)
        if finite and trained:
            for group in self._optimizer.param_groups:
                group["lr"] = lr
            self._optimizer.step()
        elif not finite:
            self.skipped_steps += 1
            log.warning("step %d: loss %s, gradient norm %s: not finite, weights left as they were", self.steps, loss, grad_norm)
        self._optimizer.zero_grad(set_to_none=True)
        self.version += 1
        self.steps += 1
        seconds = time.perf_counter() - started
        return {
            **metrics,
            "grad_norm": grad_norm,
            "lr": lr,
            **work.metrics(forest),
            **self._speed.measure(work.cost, passed),
            "skipped": float(not (finite and trained)),
            "skipped_steps": float(self.skipped_steps),
            "seconds": seconds,
            "tokens_per_second": work.positions / seconds,
        }

    def logprobs(self, tree: TokenTree, *, temperature: float = 1.0) -> dict[str, FloatArray]:
        """Log-probability of every trained token under the current weights: rollout id → float32, in the rollout's order."""
        self._use_threads()
        with torch.no_grad():
            logprob, _, _ = self._walk(tree, temperature)
        return unmerge(tree, logprob.cpu().numpy())

    def _walk(self, forest: TokenTree, temperature: float) -> tuple[Tensor, Tensor, Work]:
        """Log-probability and entropy of each contribution: float32 [C]. Where gradients are enabled, the loss's are accumulated."""
        assert not forest.depths[forest.parents < 0].any(), "a piece of a forest is not a tree: its roots hang on what is not there"
        self._ranks.check_same(forest)
        self._check_ids(forest)
        own = split(self._lay_out(forest), self._ranks.count, self._cost)[self._ranks.index]
        pieces = partition(own.tree, self.settings.tokens_per_microbatch)
        values = torch.zeros(2, len(forest.targets), device=self._device)

        def evaluate(piece: Piece, memory: Memory) -> Tensor | None:
            hidden = self._hidden(piece.tree, memory)
            if not len(piece.contributions):
                return None
            where = torch.from_numpy(own.contributions[piece.contributions]).to(self._device)
            logprob, entropy = self._head(hidden, piece.tree, temperature)
            values[:, where] = torch.stack([logprob.detach(), entropy])
            return token_losses(piece.tree, logprob, self.settings).sum()

        with self._ranks.summed_gradients() if torch.is_grad_enabled() else self._ranks.whole_weights():
            walk(pieces, evaluate)
        logprob, entropy = self._ranks.add_up(values)
        return logprob, entropy, self._work(own.tree, pieces)

    def _work(self, tree: TokenTree, pieces: Sequence[Piece]) -> Work:
        cost = sum(self._cost.of_tree(piece.tree) for piece in pieces)
        done = torch.zeros(3, self._ranks.count, dtype=torch.float64, device=self._device)
        done[:, self._ranks.index] = torch.tensor([len(tree.tokens), len(pieces), cost], dtype=torch.float64)
        positions, count, costs = self._ranks.add_up(done)
        return Work(int(positions.sum()), int(count.sum()), float(costs.max()))

    def _lay_out(self, forest: TokenTree) -> TokenTree:
        if self.settings.layout == "tree":
            return forest
        return unshare(forest) if self.settings.layout == "rows" else decide(forest, self._cost)

    def _hidden(self, tree: TokenTree, memory: Memory) -> Tensor:
        low = self._compute_dtype != torch.float32
        with torch.autocast(self._device.type, self._compute_dtype) if low else contextlib.nullcontext():
            return forward(self._model, tree, self._backend, memory)

    def _head(self, hidden: Tensor, tree: TokenTree, temperature: float) -> tuple[Tensor, Tensor]:
        head = self._model.get_output_embeddings()
        at, targets = (torch.from_numpy(array).long().to(self._device) for array in (tree.at, tree.targets))
        return token_logprobs(hidden, head.weight, getattr(head, "bias", None), at, targets, temperature or 1.0)

    def _check_ids(self, forest: TokenTree) -> None:
        vocabulary = self._model.config.vocab_size
        for name, ids in (("token", forest.tokens), ("target", forest.targets)):
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
                raise UserError(f"a tree holds {name} ids outside the model's vocabulary of {vocabulary}: was it sampled from this model?")

    def _use_threads(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)


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
