"""Every backend computes softmax attention over what the layout lets a position see, and its gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layout_cases import dense_attention, pieces, seen, segment_tree
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import create_block_mask, create_mask

from openforge.trees.backends import choose, flex
from openforge.trees.backends.base import Backend
from openforge.trees.backends.flex import block_mask, flex_backend
from openforge.trees.backends.magi import FULL, slices
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
        patch.setattr("openforge.trees.backends.segments.SMALL", small)
        actual = segment_backend(layout, CPU)(*inputs, 0.3)
    expected = dense_attention(*inputs, seen(tree), 0.3)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    grad = torch.randn_like(expected)
    for gradient, right in zip(torch.autograd.grad(actual, inputs, grad), torch.autograd.grad(expected, inputs, grad), strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("size", [4, 16, 128])
@given(tree=pieces(longest=40))
def test_flex_tiles_are_those_of_the_dense_mask(size: int, tree: TokenTree) -> None:
    visible = torch.from_numpy(seen(tree))
    expected = create_block_mask(lambda b, h, q, k: visible[q, k], None, None, *visible.shape, device="cpu", BLOCK_SIZE=size)
    actual = block_mask(Layout.of(tree), CPU, size)
    assert actual.shape == expected.shape
    for kind in ("kv", "full_kv", "q", "full_q"):
        count, right = (getattr(mask, f"{kind}_num_blocks") for mask in (actual, expected))
        assert count.dtype == right.dtype
        assert torch.equal(count, right), kind
        index, right_index = (getattr(mask, f"{kind}_indices") for mask in (actual, expected))
        assert index.shape == right_index.shape
        used = torch.arange(index.shape[-1]) < count[..., None]
        assert torch.equal(index[used], right_index[used]), kind
    assert torch.equal(create_mask(actual.mask_mod, 1, 1, *visible.shape, device="cpu")[0, 0], visible)


@given(tree=pieces(longest=40), heads=st.sampled_from([(4, 4), (4, 2)]), seed=st.integers(0, 9))
def test_flex_equals_segments(tree: TokenTree, heads: tuple[int, int], seed: int) -> None:
    layout = Layout.of(tree)
    inputs = [tensor.detach() for tensor in tensors(heads, layout, (16, 16), seed)]
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(flex, "_compiled", lambda: flex.flex_attention)
        patch.setattr(torch.nn.attention.flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        actual, expected = (backend(layout, CPU)(*inputs, 0.3) for backend in (flex_backend, segment_backend))
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_flex_is_compiled_once_for_all_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch's compiler imports setuptools, which refuses to stand in for a distutils that is imported already
    monkeypatch.setenv("SETUPTOOLS_USE_DISTUTILS", "stdlib")
    torch._dynamo.reset()
    counters.clear()
    for depth in (5, 9, 70, 150):
        layout = Layout.of(segment_tree([130, 40, 40 + depth, 7], [-1, 0, 0, -1], [depth, depth + 130, depth + 130, depth // 2]))
        inputs = [tensor.detach().float() for tensor in tensors((4, 2), layout, (16, 16), depth)]
        with torch.no_grad():
            actual, expected = (backend(layout, CPU)(*inputs, 0.3) for backend in (flex_backend, segment_backend))
        torch.testing.assert_close(actual, expected)
    assert counters["stats"]["unique_graphs"] <= 2, "one for as many tiles of queries as of keys, one for all"


@given(tree=pieces())
def test_magi_slices_say_what_the_layout_says(tree: TokenTree) -> None:
    """Magi's documentation: query i of Q sees in a causal slice the keys 0 … i + K - Q of K."""
    expected = seen(tree)
    times = np.zeros(expected.shape, int)
    for start, stop, first, last, kind in slices(Layout.of(tree)):
        rows, columns = np.arange(stop - start)[:, None], np.arange(last - first)
        shift = (last - first) - (stop - start)
        times[start:stop, first:last] += (columns <= rows + shift) | (kind == FULL)
    assert (times == expected).all()


@pytest.mark.parametrize(("name", "device", "backend"), [("auto", "cpu", segment_backend), ("auto", "cuda", flex_backend)])
def test_auto_takes_the_backend_of_the_device(name: str, device: str, backend: Backend) -> None:
    assert choose(name, torch.device(device)) is backend


@pytest.mark.parametrize(("name", "reason"), [("flex", "no backward pass on cpu"), ("magi", "Hopper")])
def test_what_the_machine_cannot_train_with_is_refused(name: str, reason: str) -> None:
    with pytest.raises(UserError, match=f"train.attention: {name}.*{reason}"):
        choose(name, CPU)
