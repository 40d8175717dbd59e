"""What a tree costs to train on, in floating-point operations: the one model by which trees are laid out and shared between ranks.

Invariant: deterministic. It is computed from shapes and constants, never from timings, so a resumed run decides as the first one did.

All figures are for forward and backward together, in FLOP-equivalents: one is the time that one operation of a large matrix
multiplication takes. Multiplying and adding are two operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from transformers import PretrainedConfig, PreTrainedModel

from openforge.trees.backends.segments import SMALL
from openforge.trees.shape import segments_of
from openforge.types import IntArray, TokenTree

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Overheads:
    """Of one kind of device: what does not follow from counting operations."""

    pair: float
    """How much slower attention's operations are than those of a large matrix multiplication."""
    call: float
    """A layer's call of the attention kernel."""
    merge: float
    """A query's width in one layer: merging what it sees above its segment with what it sees inside."""
    piece: float
    """A layer's part in one forward and backward pass: launching its kernels."""
    read: float
    """A parameter in one forward and backward pass: bringing it from memory."""


_OVERHEADS = {
    # Fitted to the passes of a 6-layer Llama of width 256 over 18 trees, rows and chains of 16 to 2,048 positions, fp32, one thread.
    "cpu": _Overheads(pair=1.2, call=2e6, merge=900.0, piece=2e8, read=40.0),
    # Not measured. One kernel attends to everything: nothing is called or merged a segment.
    "cuda": _Overheads(pair=1.2, call=0.0, merge=0.0, piece=1e10, read=400.0),
}


@dataclass(frozen=True, slots=True)
class Cost:
    """Prices of one model on one kind of device."""

    position: float
    """Through the body."""
    pair: float
    """A query that sees a key, in all layers."""
    head_row: float
    """A position that has a loss."""
    call: float
    """Of attention, in all layers."""
    merge: float
    """A query that sees keys above its segment, in all layers."""
    piece: float
    """A forward and backward pass, whatever is in it."""

    @classmethod
    def of(cls, model: PreTrainedModel, *, checkpointing: bool = False) -> Cost:
        """Prices of `model` on the device it is on; `checkpointing`: its layers' activations are recomputed.

        - A position costs 2 a parameter that multiplies it forward and 4 backward (Kaplan et al. 2020, arXiv 2001.08361, section 2.1),
          and 2 more where activations are recomputed (Narayanan et al. 2021, arXiv 2104.04473, section 3.5). Of routed experts, the
          share that a token is sent to counts; embeddings multiply nothing.
        - A pair costs 2 matrix products forward and 5 backward, the scores computed anew (Dao 2023, arXiv 2307.08691, section 4.1):
          7 · 2 · heads · head width a layer, 9 with activation checkpointing; and that as much more as attention is slower.
        - A row of the head costs 2 forward and, as logits are recomputed, 6 backward, times vocabulary and width.
        """
        config = model.config
        layers, width = config.num_hidden_layers, attention_width(config)
        active, parameters = _body_parameters(model)
        overhead = _OVERHEADS[model.device.type]
        return cls(
            position=(8.0 if checkpointing else 6.0) * active,
            pair=(9 if checkpointing else 7) * 2.0 * layers * width * overhead.pair,
            head_row=8.0 * config.vocab_size * config.hidden_size,
            call=overhead.call * layers,
            merge=overhead.merge * layers * width,
            piece=overhead.piece * layers + overhead.read * parameters,
        )

    def of_tree(self, tree: TokenTree) -> float:
        """In one pass, carried keys and values included."""
        return float((self.of_segments(np.diff(tree.starts), tree.depths) + self.of_heads(tree)).sum()) + self.piece

    def of_segments(self, lengths: IntArray, depths: IntArray) -> Floats:
        """The body's part of each segment: float64 [S].

        A segment of l positions at depth d has l · d + l · (l + 1) / 2 pairs. Below others it takes a second call, for those of its
        pairs that lie above it, and is merged. Small segments share their calls.
        """
        length = lengths.astype(np.float64)
        pairs = length * depths + length * (length + 1) / 2
        calls = np.minimum(length / SMALL, 1.0)
        below = depths > 0
        price: Floats = length * self.position + pairs * self.pair + calls * (1 + below) * self.call + below * length * self.merge
        return price

    def of_heads(self, tree: TokenTree) -> Floats:
        """The head's part of each segment: float64 [S]."""
        segments = segments_of(tree, np.unique(tree.at))
        return self.head_row * np.bincount(segments, minlength=len(tree.parents)).astype(np.float64)


def attention_width(config: PretrainedConfig) -> int:
    """Of all query heads of a layer."""
    heads: int = config.num_attention_heads
    return heads * int(getattr(config, "head_dim", None) or config.hidden_size // heads)


def _body_parameters(model: PreTrainedModel) -> tuple[float, int]:
    """Weights of the body that multiply a position, and all weights that a pass reads."""
    config = model.config
    experts = next((getattr(config, name) for name in _EXPERTS if getattr(config, name, None)), 1)
    share = config.num_experts_per_tok / experts if experts > 1 else 1.0
    outside = {id(layer.weight) for layer in (model.get_input_embeddings(), model.get_output_embeddings())}
    matrices = [(name, p) for name, p in model.named_parameters() if p.ndim >= 2 and id(p) not in outside]
    active = sum(p.numel() * (share if ".experts." in name else 1.0) for name, p in matrices)
    return active, sum(p.numel() for _, p in matrices)
