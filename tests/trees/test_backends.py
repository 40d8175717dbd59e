"""Every backend computes softmax attention over what the layout lets a position see, and its gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layout_cases import dense_attention, pieces, seen

from openforge.trees import backends
from openforge.trees.backends.segments import segment_backend
from openforge.trees.layout import Layout
from openforge.types import TokenTree, UserError

CPU = torch.device("cpu")


def tensors(heads: tuple[int, int], layout: Layout, widths: tuple[int, int], seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    own, all_keys = layout.length, layout.carried + layout.length
    shapes = [(heads[0], own, widths[0]), (heads[1], all_keys, widths[0]), (heads[1], all_keys, widths[1])]
    return [torch.randn(1, *shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("widths", [(8, 8), (8, 6)], ids=["kernel", "generic"])
@given(tree=pieces(), small=st.sampled_from([1, 8, 64]), heads=st.sampled_from([(4, 4), (4, 2), (3, 1)]), seed=st.integers(0, 9))
def test_segments_equal_dense_attention(widths: tuple[int, int], tree: TokenTree, small: int, heads: tuple[int, int], seed: int) -> None:
    layout = Layout.of(tree)
    inputs = tensors(heads, layout, widths, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("openforge.trees.backends.segments._SMALL", small)
        actual = segment_backend(layout, CPU)(*inputs, 0.3)
    expected = dense_attention(*inputs, seen(tree), 0.3)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    grad = torch.randn_like(expected)
    for gradient, right in zip(torch.autograd.grad(actual, inputs, grad), torch.autograd.grad(expected, inputs, grad), strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-11, atol=1e-11)


def test_an_unknown_attention_is_refused_with_those_there_are() -> None:
    with pytest.raises(UserError, match=r"bogus.*segments"):
        backends.choose("bogus", CPU)
