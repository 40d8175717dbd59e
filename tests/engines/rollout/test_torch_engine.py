"""The embedded engine against transformers: same tokens, same log-probabilities, whatever else happens in the batch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from openforge.engines.rollout import TorchEngine
from openforge.types import FinishReason, PromptTooLong, SampledToken, Sampling, UserError, VersionPolicy

TinyModel = Callable[[str], Path]
VOCABULARY = 199


@asynccontextmanager
async def running(path: Path, **options: Any) -> AsyncIterator[TorchEngine]:
    engine = TorchEngine(path, **{"dtype": "float32", "kv_tokens": 4096, "threads": 1} | options)
    try:
        yield engine
    finally:
        await engine.close()


async def collect(
    engine: TorchEngine, prompt: Sequence[int], sampling: Sampling, policy: VersionPolicy = VersionPolicy.RECOMPUTE
) -> tuple[list[SampledToken], FinishReason]:
    tokens: list[SampledToken] = []
    finish = None
    async for chunk in engine.generate(prompt, sampling, policy):
        assert finish is None
        tokens += chunk.tokens
        finish = chunk.finish
    assert finish is not None
    return tokens, finish


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return torch.randint(3, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def load(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype="float32").eval()


def distribution(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """float64 log-probabilities [vocabulary], by the definitions and without any cleverness."""
    logits = logits.double() / (sampling.temperature or 1.0)
    if sampling.temperature == 0:
        return logits.log_softmax(-1)
    order = logits.argsort(descending=True)
    if sampling.top_k:
        order = order[: sampling.top_k]
    probabilities = logits[order].softmax(-1)
    kept, mass = [], 0.0
    for token, p in zip(order.tolist(), probabilities.tolist(), strict=True):
        if kept and (mass >= sampling.top_p or p < sampling.min_p * probabilities[0].item()):
            break
        kept.append(token)
        mass += p
    masked = torch.full_like(logits, float("-inf"))
    masked[kept] = logits[kept]
    return masked.log_softmax(-1)


def assert_logprobs(model: Any, prompt: Sequence[int], tokens: Sequence[SampledToken], sampling: Sampling, tolerance: float = 1e-4) -> None:
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *(t.id for t in tokens)]])).logits[0]
    for index, token in enumerate(tokens):
        expected = distribution(logits[len(prompt) - 1 + index], sampling)[token.id].item()
        assert token.logprob == pytest.approx(expected, abs=tolerance), index


SETTINGS = [
    Sampling(temperature=0, max_tokens=12),
    Sampling(temperature=1.0, max_tokens=12, seed=1),
    Sampling(temperature=0.6, max_tokens=12, seed=2),
    Sampling(temperature=1.3, top_p=0.8, max_tokens=12, seed=3),
    Sampling(temperature=1.0, top_k=7, max_tokens=12, seed=4),
    Sampling(temperature=1.5, top_k=20, top_p=0.7, min_p=0.05, max_tokens=12, seed=5),
    Sampling(temperature=0.9, min_p=0.1, max_tokens=12, seed=6),
]


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "window"])
async def test_greedy_equals_transformers_generate(tiny_model: TinyModel, kind: str) -> None:
    path = tiny_model(kind)
    model = load(path)
    prompts = [prompt_of(n, n) for n in (1, 5, 33, 70, 300)]
    async with running(path) as engine:
        results = await asyncio.gather(*(collect(engine, p, Sampling(temperature=0, max_tokens=20)) for p in prompts))
    for prompt, (tokens, finish) in zip(prompts, results, strict=True):
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
        assert [t.id for t in tokens] == expected[0, len(prompt) :].tolist()
        assert finish is FinishReason.LENGTH


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "window"])
async def test_logprobs_are_those_of_the_distribution_sampled_from(tiny_model: TinyModel, kind: str) -> None:
    path = tiny_model(kind)
    model = load(path)
    system = prompt_of(100)
    jobs = [(system + prompt_of(1 + 7 * i, i), sampling) for i, sampling in enumerate(SETTINGS * 2)]
    async with running(path, max_batch=5) as engine:
        for _ in range(2):  # the second time from the prefix cache
            results = await asyncio.gather(*(collect(engine, prompt, sampling) for prompt, sampling in jobs))
            for (prompt, sampling), (tokens, _) in zip(jobs, results, strict=True):
                assert_logprobs(model, prompt, tokens, sampling)
        assert engine.stats().cached_tokens > 0


async def test_a_group_computes_its_prompt_once(tiny_model: TinyModel) -> None:
    path = tiny_model("llama")
    prompt = prompt_of(150)
    async with running(path) as engine:
        sampling = [Sampling(max_tokens=10, seed=seed) for seed in range(8)]
        results = await asyncio.gather(*(collect(engine, prompt, s) for s in sampling))
        stats = engine.stats()
    assert stats.prompt_tokens == 8 * 150
    assert stats.prompt_tokens - stats.cached_tokens <= 150 + 7 * 32
    for (tokens, _), s in zip(results, sampling, strict=True):
        assert_logprobs(load(path), prompt, tokens, s)


async def test_the_same_seed_gives_the_same_tokens_in_any_company(tiny_model: TinyModel) -> None:
    path = tiny_model("llama")
    sampling = Sampling(temperature=1.0, max_tokens=30, seed=7)
    async with running(path) as engine:
        alone, _ = await collect(engine, prompt_of(40), sampling)
        others = (collect(engine, prompt_of(10 + i, i), Sampling(max_tokens=5 + 3 * i)) for i in range(9))
        (among, _), *_ = await asyncio.gather(collect(engine, prompt_of(40), sampling), *others)
        unseeded = [await collect(engine, prompt_of(40), Sampling(max_tokens=30)) for _ in range(2)]
    assert [t.id for t in alone] == [t.id for t in among]
    assert [t.id for t in unseeded[0][0]] != [t.id for t in unseeded[1][0]]


async def test_no_cached_prefix_outlives_its_weights(tiny_model: TinyModel) -> None:
    path = tiny_model("llama")
    new = {name: tensor * 1.1 for name, tensor in load(path).state_dict().items()}
    prompt, sampling = prompt_of(200), Sampling(temperature=0, max_tokens=10)
    async with running(path) as engine:
        before, _ = await collect(engine, prompt, sampling)
        await engine.update_weights(3, new)
        after, _ = await collect(engine, prompt, sampling)
        assert engine.stats().cached_tokens == 0
    model = load(path)
    assert_logprobs(model, prompt, before, sampling)
    model.load_state_dict(new)
    assert_logprobs(model, prompt, after, sampling)
    assert {t.version for t in before} == {0}
    assert {t.version for t in after} == {3}


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
async def test_every_token_of_an_update_in_flight_has_the_logprob_of_its_version(tiny_model: TinyModel, kind: str) -> None:
    path = tiny_model(kind)
    old = load(path)
    new = load(path)
    generator = torch.Generator().manual_seed(1)
    weights = {n: t + 0.05 * torch.randn(t.shape, generator=generator) for n, t in new.state_dict().items()}
    if kind == "llama":
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    new.load_state_dict(weights)
    system = prompt_of(80)
    sampling = Sampling(temperature=1.0, max_tokens=120, seed=3)
    async with running(path) as engine:
        streams = [engine.generate(system + prompt_of(2 + i, i), sampling) for i in range(4)]
        drain = asyncio.create_task(collect(engine, system, Sampling(max_tokens=40, seed=1), VersionPolicy.DRAIN))
        tokens: list[list[SampledToken]] = [[] for _ in streams]
        under_way = asyncio.Event()

        async def consume(index: int) -> None:
            async for chunk in streams[index]:
                tokens[index] += chunk.tokens
                if all(len(t) > 3 for t in tokens):
                    under_way.set()

        tasks = [asyncio.create_task(consume(i)) for i in range(4)]
        await under_way.wait()
        await engine.update_weights(1, weights)
        await asyncio.gather(*tasks)
        drained, _ = await drain
    assert {t.version for t in drained} == {0}
    assert len(drained) == 40
    assert_logprobs(old, system, drained, Sampling(max_tokens=40, seed=1))
    for index, sampled in enumerate(tokens):
        prompt = system + prompt_of(2 + index, index)
        versions = [t.version for t in sampled]
        assert len(sampled) == 120
        assert versions == sorted(versions)
        assert set(versions) == {0, 1}
        switch = versions.index(1)
        assert_logprobs(old, prompt, sampled[:switch], sampling)
        assert_logprobs(new, prompt + [t.id for t in sampled[:switch]], sampled[switch:], sampling)


async def test_weights_that_do_not_fit_are_refused_before_anything_changes(tiny_model: TinyModel) -> None:
    path = tiny_model("llama")
    good = load(path).state_dict()
    name = "model.layers.0.mlp.up_proj.weight"
    bad: list[tuple[str, dict[str, torch.Tensor]]] = [
        ("missing model.layers.0.mlp.up_proj.weight", {n: t * 2 for n, t in good.items() if n != name}),
        ("unknown nonsense", good | {"nonsense": torch.zeros(1)}),
        ("has shape", {n: t * 2 for n, t in good.items()} | {name: torch.zeros(3)}),
    ]
    sampling = Sampling(temperature=0, max_tokens=5)
    async with running(path) as engine:
        before = await collect(engine, prompt_of(20), sampling)
        for message, weights in bad:
            with pytest.raises(ValueError, match=message):
                await engine.update_weights(1, weights)
        assert await collect(engine, prompt_of(20), sampling) == before
        await engine.update_weights(1, {n: t for n, t in good.items() if n != "lm_head.weight"})
        with pytest.raises(ValueError, match="only grow"):
            await engine.update_weights(1, good)


async def test_cancelling_frees_the_slot(tiny_model: TinyModel) -> None:
    async with running(tiny_model("llama"), max_batch=1) as engine:
        first = engine.generate(prompt_of(20), Sampling(max_tokens=400))
        await anext(first)
        second = asyncio.create_task(collect(engine, prompt_of(5), Sampling(max_tokens=3)))
        await asyncio.sleep(0.01)
        assert not second.done()
        await first.aclose()
        await second
        stats = engine.stats()
        assert (stats.running, stats.waiting) == (0, 0)
        assert stats.sampled_tokens < 400


async def test_a_paused_engine_keeps_requests_and_takes_weights(tiny_model: TinyModel) -> None:
    path = tiny_model("llama")
    async with running(path) as engine:
        await engine.pause()
        task = asyncio.create_task(collect(engine, prompt_of(5), Sampling(max_tokens=3)))
        await asyncio.sleep(0.05)
        assert not task.done()
        await engine.update_weights(1, load(path).state_dict())
        await engine.resume()
        tokens, _ = await task
        assert {t.version for t in tokens} == {1}


async def test_context_limits(tiny_model: TinyModel) -> None:
    async with running(tiny_model("llama"), kv_tokens=128) as engine:
        assert engine.context_length == 128
        with pytest.raises(PromptTooLong):
            await collect(engine, prompt_of(128), Sampling())
        tokens, finish = await collect(engine, prompt_of(120), Sampling(max_tokens=50))
        assert (len(tokens), finish) == (8, FinishReason.LENGTH)


async def test_stop_token_ids(tiny_model: TinyModel) -> None:
    async with running(tiny_model("llama")) as engine:
        free, _ = await collect(engine, prompt_of(20), Sampling(max_tokens=20, seed=1))
        stop = free[7].id
        tokens, finish = await collect(engine, prompt_of(20), Sampling(max_tokens=20, seed=1, stop_token_ids=(stop,)))
    assert finish is FinishReason.STOP
    assert [t.id for t in tokens] == [t.id for t in free[: [t.id for t in free].index(stop) + 1]]


async def test_many_requests_in_little_memory(tiny_model: TinyModel) -> None:
    """Growing, preempting and evicting change no token."""
    path = tiny_model("llama")
    model = load(path)
    jobs = [(prompt_of(5 + 11 * i, i), Sampling(max_tokens=90, seed=i)) for i in range(8)]
    async with running(path, kv_tokens=320) as engine:
        results = await asyncio.gather(*(collect(engine, prompt, s) for prompt, s in jobs))
    for (prompt, s), (tokens, _) in zip(jobs, results, strict=True):
        assert len(tokens) == 90
        assert_logprobs(model, prompt, tokens, s)


async def test_a_failing_step_reaches_every_request(tiny_model: TinyModel) -> None:
    path = tiny_model("llama")
    good = load(path).state_dict()
    async with running(path) as engine:
        await engine.update_weights(1, {n: t * float("nan") for n, t in good.items()})
        results = await asyncio.gather(*(collect(engine, prompt_of(9, i), Sampling()) for i in range(3)), return_exceptions=True)
        assert all(isinstance(r, FloatingPointError) for r in results)
        await engine.update_weights(2, good)
        tokens, _ = await collect(engine, prompt_of(9), Sampling(max_tokens=4, temperature=0))
        assert_logprobs(load(path), prompt_of(9), tokens, Sampling(temperature=0))


async def test_close_aborts_what_runs_and_leaves_no_thread(tiny_model: TinyModel) -> None:
    async with running(tiny_model("llama")) as engine:
        stream = engine.generate(prompt_of(5), Sampling(max_tokens=500))
        await anext(stream)
        await engine.close()
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].finish is FinishReason.ABORTED
        with pytest.raises(RuntimeError, match="closed"):
            await collect(engine, prompt_of(5), Sampling())
    assert not [t for t in threading.enumerate() if t.name == "rollout-engine"]


async def test_bfloat16_body_with_float32_head(tiny_model: TinyModel) -> None:
    path = tiny_model("llama")
    sampling = Sampling(temperature=1.0, max_tokens=10, seed=1)
    async with running(path, dtype="bfloat16") as engine:
        tokens, _ = await collect(engine, prompt_of(40), sampling)
        assert_logprobs(load(path), prompt_of(40), tokens, sampling, tolerance=0.3)
        await engine.update_weights(1, {n: t * 1.1 for n, t in load(path).state_dict().items()})
        after, _ = await collect(engine, prompt_of(40), sampling)
    model = load(path)
    model.load_state_dict({n: t * 1.1 for n, t in model.state_dict().items()})
    assert_logprobs(model, prompt_of(40), after, sampling, tolerance=0.3)


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model here"):
        TorchEngine(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UserError, match="cannot load"):
        TorchEngine(tmp_path)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_arrivals_lengths_and_cancels(tiny_model: TinyModel, data: st.DataObject) -> None:
    path = tiny_model("qwen2")
    model = load(path)
    jobs = data.draw(
        st.lists(
            st.tuples(
                st.sampled_from([0, 40, 64, 100, 150]),  # of a prefix that all share
                st.integers(1, 90),
                st.integers(1, 60),
                st.integers(0, 30),  # milliseconds until it arrives
                st.none() | st.integers(1, 20),  # tokens after which it is cancelled
            ),
            min_size=1,
            max_size=14,
        )
    )
    max_batch = data.draw(st.integers(1, 8))
    kv_tokens = data.draw(st.sampled_from([256, 512, 2048]))
    system = prompt_of(150)

    async def run() -> None:
        async with running(path, max_batch=max_batch, kv_tokens=kv_tokens) as engine:

            async def one(index: int, job: tuple[int, int, int, int, int | None]) -> None:
                shared, own, new, delay, cancel = job
                prompt = system[:shared] + prompt_of(own, index % 3)
                if len(prompt) >= engine.context_length:
                    return
                sampling = SETTINGS[index % len(SETTINGS)]
                sampling = Sampling(
                    temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k, max_tokens=new, seed=index
                )
                await asyncio.sleep(delay / 1000)
                tokens: list[SampledToken] = []
                stream = engine.generate(prompt, sampling)
                async for chunk in stream:
                    tokens += chunk.tokens
                    if cancel is not None and len(tokens) >= cancel:
                        break
                await stream.aclose()
                assert cancel is not None or len(tokens) == min(new, engine.context_length - len(prompt))
                assert_logprobs(model, prompt, tokens, sampling)

            await asyncio.gather(*(one(i, job) for i, job in enumerate(jobs)))
            for _ in range(100):
                stats = engine.stats()
                if not (stats.running or stats.waiting):
                    break
                await asyncio.sleep(0.01)
            assert (stats.running, stats.waiting) == (0, 0)

    asyncio.run(run())
