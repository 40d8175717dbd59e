from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from transformers import LlamaConfig

from openforge.engines.training import heads
from openforge.types import UserError


def reference(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, at: torch.Tensor, targets: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs = (torch.nn.functional.linear(hidden, weight, bias) / temperature).log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs[at, targets], entropy[at]


@hypothesis_settings(deadline=None, max_examples=40)
@given(
    at=st.lists(st.integers(0, 11), min_size=1, max_size=30),
    chunk=st.integers(1, 9),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    has_bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_chunked_head_equals_the_plain_one(at: list[int], chunk: int, temperature: float, has_bias: bool, seed: int) -> None:
    torch.manual_seed(seed)
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((12, 6), (9, 6), (9,))]
    inputs = leaves if has_bias else [*leaves[:2], None]
    index, targets = torch.tensor(at), torch.randint(0, 9, (len(at),))
    factor = torch.randn(len(at), dtype=torch.float64)
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads, "CHUNK", chunk)
        for function in (heads.token_logprobs, reference):
            logprob, entropy = function(*inputs, index, targets, temperature)
            grads = torch.autograd.grad((logprob * factor).sum(), [leaf for leaf in inputs if leaf is not None])
            results.append([logprob.detach(), entropy.detach(), *grads])
    for actual, wanted in zip(*results, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-10, atol=1e-12)


def test_bfloat16_hidden_states_are_projected_in_float32() -> None:
    hidden = torch.randn(4, 8).bfloat16()
    logprob, _ = heads.token_logprobs(hidden, torch.randn(5, 8), None, torch.tensor([0, 3]), torch.tensor([1, 2]))
    assert logprob.dtype == torch.float32


def test_a_head_that_rescales_logits_is_refused() -> None:
    config = LlamaConfig()
    config.logits_scaling = 8.0
    with pytest.raises(UserError, match="logits_scaling"):
        heads.check_head(config)
