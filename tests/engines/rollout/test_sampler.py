"""The sampler against the definitions of the distributions it claims to draw from."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openforge.engines.rollout.sampler import sample
from openforge.types import Sampling

DRAWS = 20_000


def reference(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """float64 probabilities [vocabulary]."""
    values, order = (logits.double() / sampling.temperature).sort(descending=True)
    if sampling.top_k:
        values = values[: sampling.top_k]
    p = values.softmax(-1)
    keep = ((p.cumsum(-1) - p < sampling.top_p) | (sampling.top_p >= 1)) & (p >= sampling.min_p * p[0])
    keep[0] = True
    return torch.zeros(len(logits), dtype=torch.float64).scatter(0, order[: len(p)][keep], p[keep] / p[keep].sum())


@pytest.mark.parametrize("vocabulary", [40, 700])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.5),
        Sampling(top_p=0.7),
        Sampling(top_k=9),
        Sampling(min_p=0.1),
        Sampling(temperature=1.4, top_k=30, top_p=0.9, min_p=0.02),
    ],
    ids=str,
)
def test_draws_follow_the_distribution(vocabulary: int, sampling: Sampling) -> None:
    """Chi-square: the statistic has mean k and deviation sqrt(2 k); the seed is fixed, so this never flakes."""
    logits = 2 * torch.randn(vocabulary, generator=torch.Generator().manual_seed(1))
    rng = random.Random(2)
    ids, logprobs = sample(logits.repeat(DRAWS, 1), [sampling] * DRAWS, [rng.random() for _ in range(DRAWS)])
    expected = reference(logits, sampling)
    torch.testing.assert_close(torch.tensor(logprobs, dtype=torch.float64), expected[ids].log(), atol=1e-5, rtol=0)
    counts = torch.bincount(torch.tensor(ids), minlength=vocabulary).double()
    usual = expected * DRAWS >= 5
    degrees = int(usual.sum())
    statistic = ((counts - expected * DRAWS)[usual] ** 2 / (expected * DRAWS)[usual]).sum().item()
    assert statistic < degrees + 5 * (2 * degrees) ** 0.5


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    vocabulary=st.integers(1, 1500),
    temperature=st.sampled_from([0.0, 0.1, 1.0, 5.0]),
    top_k=st.sampled_from([0, 1, 5, 2000]),
    top_p=st.sampled_from([0.01, 0.5, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.2, 1.0]),
    uniform=st.sampled_from([0.0, 0.5, 1 - 2**-53]),
)
def test_a_draw_is_possible_and_ignores_its_neighbours(
    seed: int, vocabulary: int, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float
) -> None:
    logits = 3 * torch.randn(3, vocabulary, generator=torch.Generator().manual_seed(seed))
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    others = [Sampling(), Sampling(top_p=0.9)]
    (token, *_), (logprob, *_) = sample(logits.clone(), [sampling, *others], [uniform, 0.3, 0.6])
    assert sample(logits[:1].clone(), [sampling], [uniform])[0] == [token]
    if temperature == 0:
        assert token == logits[0].argmax()
        expected = logits[0].double().softmax(-1)
    else:
        expected = reference(logits[0], sampling)
    assert expected[token] > 0
    assert logprob == pytest.approx(expected[token].log().item(), abs=1e-4)


def test_a_cut_beyond_the_first_candidates() -> None:
    """A nearly flat distribution, whose nucleus is larger than the part of the vocabulary that is sorted first."""
    logits = 0.01 * torch.randn(5000, generator=torch.Generator().manual_seed(1))
    ids, logprobs = sample(logits.unsqueeze(0).clone(), [Sampling(top_p=0.9)], [0.999])
    assert logprobs[0] == pytest.approx(reference(logits, Sampling(top_p=0.9))[ids[0]].log().item(), abs=1e-5)


def test_broken_logits_are_an_error() -> None:
    with pytest.raises(FloatingPointError):
        sample(torch.full((1, 10), float("nan")), [Sampling()], [0.5])
