"""A cost counts what a forward and backward pass does."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from forest_cases import Forest, forests
from hypothesis import given
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen3MoeConfig

from openforge.engines.training.heads import token_logprobs
from openforge.trees.build import build
from openforge.trees.cost import Cost
from openforge.trees.layout import Layout
from openforge.trees.partition import partition

COST = Cost(position=40.0, pair=0.1, head_row=60.0, call=100.0, merge=3.0, piece=1000.0)


@given(forest=forests())
def test_pairs_are_those_of_the_layout_and_carried_ones_count(forest: Forest) -> None:
    tree = build(forest.trajectories, forest.advantages, forest.weights)
    pairs = dataclasses.replace(COST, position=0.0, head_row=0.0, call=0.0, merge=0.0, piece=0.0)
    assert pairs.of_tree(tree) == pytest.approx(COST.pair * Layout.of(tree).pairs)
    for piece in partition(tree, 3):
        assert pairs.of_tree(piece.tree) == pytest.approx(COST.pair * Layout.of(piece.tree).pairs)


SIZE = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SIZE, intermediate_size=40, tie_word_embeddings=True),
        Qwen3MoeConfig(**SIZE, intermediate_size=40, moe_intermediate_size=12, num_experts=8, num_experts_per_tok=2),
    ],
    ids=["dense", "experts"],
)
def test_prices_are_the_operations_that_torch_counts(config: PretrainedConfig, checkpointing: bool) -> None:
    kind = {"experts_implementation": "eager"} if config.model_type == "qwen3_moe" else {}
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32, **kind)
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
        model.train()

    def operations(length: int) -> int:
        with FlopCounterMode(display=False) as counter:
            model.base_model(input_ids=torch.arange(length)[None] % 50, use_cache=False).last_hidden_state.sum().backward()
        return counter.get_total_flops()

    # a · length + b · length²; attention as it is written out computes no score anew in the backward pass, and no pair is left out
    once, twice = operations(32), operations(64)
    cost = Cost.of(model, checkpointing=checkpointing)
    # torch ends the second forward before a layer's last product, which nothing needs
    assert cost.position == pytest.approx((4 * once - twice) / 64, rel=0.06 if checkpointing else 0.001)
    assert cost.pair == pytest.approx((twice - 2 * once) / (2 * 32**2) * 1.2 * (9 / 8 if checkpointing else 7 / 6), rel=0.001)


def test_a_row_of_the_head_costs_what_torch_counts() -> None:
    rows, width, vocabulary = 300, 64, 50
    hidden, weight = torch.randn(rows, width, requires_grad=True), torch.randn(vocabulary, width, requires_grad=True)
    at = torch.arange(rows)
    products = {torch.ops.aten.addmm_: lambda _, left, right, **__: 2 * left[0] * left[1] * right[1]}
    with FlopCounterMode(display=False, custom_mapping=products) as counter:
        token_logprobs(hidden, weight, None, at, at % vocabulary)[0].sum().backward()
    model = AutoModelForCausalLM.from_config(LlamaConfig(**{**SIZE, "hidden_size": width}, intermediate_size=8))
    assert Cost.of(model).head_row * rows == pytest.approx(counter.get_total_flops(), rel=0.01)
