"""Plain dense rows: what the machine does with the same model, head and optimizer where no tree is involved.

Invariant: transformers' own model, torch's own attention and autograd; of this package only the head and the optimizer.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from openforge.bench.flops import Work, flops
from openforge.bench.steps import WHOLE, settings
from openforge.engines.training.heads import token_logprobs
from openforge.engines.training.optimizer import make_optimizer


class DenseRows:
    """Steps on rows of equal length, as many as make up a given amount of work."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
        self.model.to("cuda" if torch.cuda.is_available() else "cpu")
        self._optimizer = make_optimizer(self.model, settings(WHOLE))

    def seconds_per_flop(self, work: Work, budget: int) -> float:
        """Of one step on about that much work in the same mix: a position sees as many keys on average, and the same share has a loss.
        At most `budget` positions go through the model at a time."""
        length = max(1, round(2 * work.pairs / work.positions) - 1)
        rows = max(1, round(work.positions / length))
        ids = torch.arange(rows * length, device=self.model.device).view(rows, length) * 7919 % self.model.config.vocab_size
        every = work.positions / work.head_rows
        started = time.perf_counter()
        self._optimizer.zero_grad(set_to_none=True)
        head_rows = sum(self._accumulate(batch, every) for batch in ids.split(max(1, budget // length)))
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1e9).item()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        seconds = time.perf_counter() - started
        return seconds / flops(self.model, Work(rows * length, rows * length * (length + 1) // 2, head_rows))

    def _accumulate(self, ids: torch.Tensor, every: float) -> int:
        """Forward and backward; a loss at one position in `every`. How many that were."""
        hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)
        at = torch.arange(int(len(hidden) / every), device=hidden.device, dtype=torch.float64).mul(every).long()
        logprobs, _ = token_logprobs(hidden, self.model.lm_head.weight, None, at, ids.flatten()[at])
        (-logprobs.sum() / len(hidden)).backward()  # type: ignore[no-untyped-call]
        return len(at)
