from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from openforge.bench.float64 import to_float64
from openforge.bench.rollouts import Rollouts, Shape
from openforge.bench.routing import Routing, of_tree
from openforge.bench.tree_precision import ARCHITECTURES, run

SHAPE = Shape("small", ((1, 6), (2, 5), (2, 6)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3", "minimax_m2"])
def test_a_tree_is_as_close_to_the_truth_as_separate_sequences(name: str) -> None:
    result = run(None, shape=SHAPE, names=[name])
    assert [row["dtype"] for row in result.rows] == ["float32", "bfloat16"]
    assert [bar.name for bar in result.bars] == ["gradient_over_rows", "logprob_over_rows"]
    full, half = result.rows
    assert 0 < full["tree gradient"] < 1e-5
    assert 0 < full["tree logprob"] < 1e-4
    assert half["tree gradient"] < 0.1


def test_nothing_rounds_to_float32_in_a_float64_model() -> None:
    """The function is smooth, so halving a small step quarters what its tangent misses, until rounding shows."""
    torch.manual_seed(0)
    model = to_float64(AutoModelForCausalLM.from_config(ARCHITECTURES["qwen3_moe"](), dtype=torch.float32).eval())
    embeddings = model.get_input_embeddings()(torch.arange(5)[None]).detach()
    direction = torch.randn_like(embeddings)

    def value(step: float) -> torch.Tensor:
        with Routing(given):
            return model(inputs_embeds=embeddings + step * direction).logits

    with Routing() as routing:
        model(inputs_embeds=embeddings)
    given = routing.made
    step = 1e-4
    curvature = [value(s) - 2 * value(0.0) + value(-s) for s in (step, step / 2)]
    assert (curvature[0] / 4 - curvature[1]).norm() < 1e-3 * curvature[1].norm()


def test_a_tree_gets_the_choices_of_its_sequences() -> None:
    rollouts = Rollouts.random(SHAPE, 50)
    [tree] = rollouts.tree()
    tokens = of_tree(tree, [[torch.from_numpy(sequence)] for sequence in rollouts.sequences])
    assert tokens[0].tolist() == tree.tokens.tolist()
