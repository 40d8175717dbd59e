from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from openforge.engines.training import checkpoint
from openforge.engines.training.engine import TrainEngine
from openforge.engines.training.optimizer import learning_rate
from openforge.engines.training.settings import TrainSettings
from openforge.rl.aggregation import token_weights
from openforge.trees import attention
from openforge.trees.build import build
from openforge.trees.partition import partition
from openforge.types import LineageKind, TokenTree, Trajectory, UserError


def trajectories(seed: int, version: int = 0) -> list[Trajectory]:
    """Two groups of three rollouts that share a system prompt: reply, tool response, reply."""
    random = np.random.default_rng(seed)
    system = random.integers(0, 48, 8)
    items = []
    for group in range(2):
        prompt = np.concatenate([system, random.integers(0, 48, 4)])
        for index in range(3):
            tokens = np.concatenate([prompt, random.integers(0, 48, 14)]).astype(np.int32)
            trained = np.isin(np.arange(len(tokens)), [12, 13, 14, 15, 20, 21, 22])
            items.append(
                Trajectory(
                    rollout_id=f"{group}.{index}",
                    kind=LineageKind.MAIN,
                    call_ids=[],
                    ends=np.empty(0, np.int32),
                    tokens=tokens,
                    sampled=trained,
                    trained=trained,
                    logprobs=np.where(trained, -3.9, 0).astype(np.float32),
                    versions=np.where(trained, version, -1).astype(np.int32),
                    masked={},
                )
            )
    return items


def one_tree(seed: int, version: int = 0) -> TokenTree:
    items = trajectories(seed, version)
    return build(items, {item.rollout_id: (-1.0) ** i for i, item in enumerate(items)}, token_weights(items))


def settings(**values: Any) -> TrainSettings:
    return TrainSettings(**{"dtype": "float32", "learning_rate": 1e-3, "layout": "tree", **values})


def mean_logprob(engine: TrainEngine, tree: TokenTree) -> float:
    return float(np.concatenate(list(engine.logprobs(tree).values())).mean())


def copied(engine: TrainEngine) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in engine.weights().items()}


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor], **tolerance: float) -> None:
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], **(tolerance or {"rtol": 0.0, "atol": 0.0}))


def test_step_reports_and_moves_the_weights(model_dir: Path) -> None:
    engine = TrainEngine(model_dir, settings())
    before = copied(engine)
    tree = one_tree(0)
    metrics = engine.step([tree])
    assert engine.version == 1
    assert metrics["tokens"] == 42
    assert metrics["positions"] == len(tree.tokens)
    assert metrics["skipped"] == 0
    assert 0 < metrics["entropy"] <= np.log(48) + 1e-6
    assert 0 < metrics["logprob_gap"] <= metrics["logprob_gap_max"]
    assert metrics["lr"] == 1e-3
    assert any(not torch.equal(before[name], tensor) for name, tensor in engine.weights().items())
    assert "logprob_gap" not in engine.step([tree]), "those tokens are of an older version by now"


@pytest.mark.parametrize("budget", [8192, 9])
def test_logprobs_are_those_of_transformers_at_the_sampling_temperature(model_dir: Path, budget: int) -> None:
    items = trajectories(1)
    tree = build(items, {item.rollout_id: 1.0 for item in items}, token_weights(items))
    actual = TrainEngine(model_dir, settings(tokens_per_microbatch=budget)).logprobs(tree, temperature=0.7)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    assert list(actual) == [item.rollout_id for item in items]
    for item in items:
        ids = torch.from_numpy(item.tokens).long()
        with torch.no_grad():
            logprobs = (model(ids[None]).logits[0] / 0.7).log_softmax(-1)
        where = np.flatnonzero(item.trained)
        np.testing.assert_allclose(actual[item.rollout_id], logprobs[where - 1, ids[where]].numpy(), atol=1e-5)


WAYS = [
    {"tokens_per_microbatch": 30},
    {"tokens_per_microbatch": 9, "activation_checkpointing": True},
    {"tokens_per_microbatch": 1},
    {"activation_checkpointing": True},
]


@pytest.mark.parametrize("change", WAYS)
def test_the_step_does_not_depend_on_how_it_is_computed(model_dir: Path, change: dict[str, Any]) -> None:
    reference, other = TrainEngine(model_dir, settings()), TrainEngine(model_dir, settings(**change))
    assert_same_step(other.step([one_tree(0)]), reference.step([one_tree(0)]))


@pytest.mark.slow
@pytest.mark.parametrize("change", WAYS)
def test_the_step_of_a_mixture_of_experts_does_not_depend_on_how_it_is_computed(experts_dir: Path, change: dict[str, Any]) -> None:
    reference, other = TrainEngine(experts_dir, settings()), TrainEngine(experts_dir, settings(**change))
    assert_same_step(other.step([one_tree(0)]), reference.step([one_tree(0)]))


def assert_same_step(actual: dict[str, float], expected: dict[str, float]) -> None:
    assert actual.keys() == expected.keys()
    for name in actual.keys() - {"seconds", "tokens_per_second", "pieces"}:
        assert actual[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name


def test_one_tree_or_a_tree_a_rollout_in_any_order_is_the_same_step(model_dir: Path) -> None:
    items = trajectories(3)
    weights = token_weights(items)
    advantages = {item.rollout_id: (-1.0) ** i for i, item in enumerate(items)}
    together = TrainEngine(model_dir, settings()).step([build(items, advantages, weights)])
    rows = [build([item], advantages, [weight]) for item, weight in zip(items, weights, strict=True)]
    apart = TrainEngine(model_dir, settings()).step(rows[::-1])
    assert apart["positions"] > together["positions"]
    assert apart["grad_norm"] == pytest.approx(together["grad_norm"], rel=1e-4)
    assert apart["loss"] == pytest.approx(together["loss"], rel=1e-4, abs=1e-6)


def test_activation_checkpointing_is_really_on(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TrainEngine(model_dir, settings(activation_checkpointing=True))
    calls: list[Any] = []
    original = attention.tree_attention
    counting = lambda *arguments, **keywords: (calls.append(arguments), original(*arguments, **keywords))[1]  # noqa: E731
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, attention.BACKEND, counting)
    engine.step([one_tree(0)])
    assert len(calls) == 2 * 2, "each of the two layers attends once forward and once more in the backward pass"


def test_bfloat16_stays_near_float32_and_keeps_float32_weights(model_dir: Path) -> None:
    low, full = TrainEngine(model_dir, settings(dtype="bfloat16")), TrainEngine(model_dir, settings())
    for name, expected in full.logprobs(one_tree(0)).items():
        np.testing.assert_allclose(low.logprobs(one_tree(0))[name], expected, atol=0.05)
    low.step([one_tree(0)])
    assert {tensor.dtype for tensor in low.weights().values()} == {torch.float32}


def test_training_raises_the_likelihood_of_rewarded_tokens(model_dir: Path) -> None:
    engine = TrainEngine(model_dir, settings(loss="reinforce"))
    items = trajectories(4)
    tree = build(items, {item.rollout_id: 1.0 for item in items}, token_weights(items))
    before = mean_logprob(engine, tree)
    for _ in range(3):
        engine.step([tree])
    assert mean_logprob(engine, tree) > before


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_is_skipped_counted_and_said(model_dir: Path, caplog: pytest.LogCaptureFixture, bad: float) -> None:
    engine = TrainEngine(model_dir, settings())
    before = copied(engine)
    tree = one_tree(0)
    tree.weights[0] = bad
    metrics = engine.step([tree])
    assert (metrics["skipped"], metrics["skipped_steps"], engine.version) == (1, 1, 1)
    assert "not finite" in caplog.text
    assert_same(before, copied(engine))
    assert engine.step([one_tree(0)])["skipped"] == 0


def test_a_batch_without_trained_tokens_leaves_the_weights(model_dir: Path) -> None:
    engine = TrainEngine(model_dir, settings(weight_decay=0.1))
    before = copied(engine)
    metrics = engine.step([])
    assert (metrics["skipped"], metrics["skipped_steps"], metrics["tokens"], engine.version) == (1, 0, 0, 1)
    assert_same(before, copied(engine))


def test_going_on_after_restore_is_bit_equal_to_not_having_stopped(model_dir: Path, tmp_path: Path) -> None:
    options = settings(warmup_steps=2, decay="cosine", steps=6, weight_decay=0.1)
    engine = TrainEngine(model_dir, options)
    for seed in range(2):
        engine.step([one_tree(seed)])
    engine.save(tmp_path / "step-2")
    restored = TrainEngine.restore(tmp_path / "step-2", options)
    assert restored.version == 2
    assert_same(copied(engine), copied(restored))
    for seed in range(2, 5):
        tree = one_tree(seed, version=seed)
        expected, actual = engine.step([tree]), restored.step([tree])
        timing = {"seconds", "tokens_per_second", "predicted_seconds", "prediction_error"}
        assert {k: v for k, v in expected.items() if k not in timing} == {k: v for k, v in actual.items() if k not in timing}
    assert_same(copied(engine), copied(restored))


def test_a_checkpoint_is_a_hugging_face_folder(model_dir: Path, tmp_path: Path) -> None:
    engine = TrainEngine(model_dir, settings())
    engine.step([one_tree(0)])
    engine.save(tmp_path / "a" / "checkpoint")
    assert_same(copied(engine), dict(AutoModelForCausalLM.from_pretrained(tmp_path / "a" / "checkpoint", dtype=torch.float32).state_dict()))
    assert (tmp_path / "a" / "checkpoint" / "chat_template.jinja").read_text() == "{{ messages }}"
    assert "openforge" not in (tmp_path / "a" / "checkpoint" / "config.json").read_text()
    again = TrainEngine.restore(tmp_path / "a" / "checkpoint", settings())
    shutil.rmtree(tmp_path / "a" / "checkpoint")
    again.save(tmp_path / "b")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]
    assert (tmp_path / "b" / "tokenizer.json").exists()


@pytest.mark.parametrize("moment", ["fsync", "rename"])
def test_a_crash_while_saving_leaves_the_last_checkpoint(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    engine = TrainEngine(model_dir, settings())
    engine.save(tmp_path / "checkpoint")
    engine.step([one_tree(0)])

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*((os, "fsync") if moment == "fsync" else (Path, "rename")), crash)
        with pytest.raises(KeyboardInterrupt):
            engine.save(tmp_path / "checkpoint")
    assert TrainEngine.restore(tmp_path / "checkpoint", settings()).version == 0
    engine.save(tmp_path / "checkpoint")
    assert TrainEngine.restore(tmp_path / "checkpoint", settings()).version == 1
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("name", ["model.safetensors", checkpoint.OPTIMIZER_FILE, checkpoint.TRAINER_FILE])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_a_damaged_checkpoint_is_an_error_that_names_the_file(model_dir: Path, tmp_path: Path, name: str, damage: str) -> None:
    engine = TrainEngine(model_dir, settings())
    engine.step([one_tree(0)])
    engine.save(tmp_path / "checkpoint")
    file = tmp_path / "checkpoint" / name
    content = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    else:
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(content[: len(content) // 2] if damage == "truncated" else content)
    with pytest.raises(UserError, match=name) as error:
        TrainEngine.restore(tmp_path / "checkpoint", settings())
    assert "\n" not in str(error.value)


def test_a_folder_without_a_model_is_a_one_line_error(tmp_path: Path) -> None:
    for name, content in (("missing", None), ("empty", ""), ("strange", json.dumps({"model_type": "nonesuch"}))):
        folder = tmp_path / name
        if content is not None:
            folder.mkdir()
            (folder / "config.json").write_text(content)
        with pytest.raises(UserError, match=str(folder)) as error:
            TrainEngine(folder, settings())
        assert "\n" not in str(error.value)


def changed_config(model_dir: Path, folder: Path, **changes: Any) -> Path:
    shutil.copytree(model_dir, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_hidden_layers": 3}, r"lacks \d+ tensors \(model\.layers\.2"),
        ({"quantization_config": {"quant_method": "nonesuch"}}, "is quantized"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "GPTQ"),
        ({"max_position_embeddings": None}, "max_position_embeddings"),
    ],
)
def test_a_model_that_would_not_be_the_saved_one_is_refused(model_dir: Path, tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason) as error:
        TrainEngine(changed_config(model_dir, tmp_path / "changed", **changes), settings())
    assert "\n" not in str(error.value)


def test_a_world_without_a_meeting_place_is_refused(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UserError, match="MASTER_ADDR is not"):
        TrainEngine(model_dir, settings())


@pytest.mark.parametrize("layout", ["auto", "tree", "rows"])
def test_a_piece_of_a_forest_is_no_tree_to_train_on(model_dir: Path, layout: str) -> None:
    piece = next(piece for piece in partition(one_tree(0), 9) if piece.carried)
    with pytest.raises(AssertionError, match="hang on what is not there"):
        TrainEngine(model_dir, settings(layout=layout)).logprobs(piece.tree)


def test_ids_outside_the_vocabulary_are_refused(model_dir: Path) -> None:
    tree = one_tree(0)
    tree.tokens[3] = 48
    with pytest.raises(UserError, match="vocabulary of 48"):
        TrainEngine(model_dir, settings()).step([tree])


def test_learning_rate_warms_up_and_decays() -> None:
    options = settings(learning_rate=1.0, warmup_steps=4, steps=8, decay="linear")
    assert [learning_rate(options, step) for step in range(9)] == [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    assert learning_rate(settings(learning_rate=1.0), 10_000) == 1.0
    assert learning_rate(settings(learning_rate=1.0, steps=8, decay="cosine"), 4) == pytest.approx(0.5)
