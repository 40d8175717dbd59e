"""What was recorded, merged into a tree, against every call by itself."""

from __future__ import annotations

import numpy as np
import torch
from stage import Performance
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from openforge.coordinator import trajectories
from openforge.engines.training.heads import token_logprobs
from openforge.rl import token_weights
from openforge.trees import build
from openforge.trees.attention import BACKEND
from openforge.trees.backends.segments import segment_backend
from openforge.trees.forward import forward
from openforge.trees.unmerge import unmerge
from openforge.types import TokenTree


@torch.no_grad()
def check_forest(seen: Performance) -> TokenTree:
    """In the tree, every token that is to be trained has the log-probability that it has in its call alone. Returns the tree."""
    paths = [path for path in trajectories(seen.calls) if path.trained.any()]
    tree = build(paths, {seen.rollout.id: 1.0}, token_weights(paths))
    model = random_llama(1 + max(max(call.delta + call.sampled) for call in seen.calls))
    (merged,) = unmerge(tree, logprobs(model, forward(model, tree, segment_backend), tree.at, tree.targets)).values()
    assert len(merged) == seen.delivery.trained
    model.set_attn_implementation("sdpa")
    calls = {call.id: call for call in seen.calls}
    trained = [calls[id] for path in paths for id in path.call_ids]
    alone = np.concatenate([by_itself(model, seen.prompt(call), call.sampled) for call in trained])
    np.testing.assert_allclose(merged, alone, rtol=0, atol=1e-6)  # the model's norms round to float32
    return tree


def random_llama(vocabulary: int) -> PreTrainedModel:
    """With weights so large that attention is far from even."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    return LlamaForCausalLM._from_config(config, attn_implementation=BACKEND, dtype=torch.float64).eval()


def by_itself(model: PreTrainedModel, prompt: list[int], reply: list[int]) -> np.ndarray:
    """Log-probabilities of the reply's tokens: float64."""
    ids = torch.tensor([prompt + reply[:-1]])
    at = np.arange(len(prompt) - 1, ids.shape[1])
    return logprobs(model, model.base_model(input_ids=ids).last_hidden_state[0], at, np.array(reply))


def logprobs(model: PreTrainedModel, hidden: Tensor, at: np.ndarray, targets: np.ndarray) -> np.ndarray:
    values, _ = token_logprobs(hidden, model.lm_head.weight, None, torch.from_numpy(at).long(), torch.from_numpy(targets).long())
    return values.numpy()
