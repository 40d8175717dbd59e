"""Doubles of the gateway's neighbours (a scripted engine, a log in memory, a small ChatML tokenizer), and the gateway over real HTTP."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from openforge.gateway import EngineBackend, Gateway, Limits, listen
from openforge.gateway.formats import load_format
from openforge.gateway.relay import Patience
from openforge.gateway.text import encode, own_tokenizer
from openforge.types import Call, EngineStats, FinishReason, GenerationChunk, PromptTooLong, SampledToken, Sampling, VersionPolicy, Weights

CHATML = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MODEL = Path(__file__).parents[2] / "models" / "smollm2-135m-instruct"


def train_tokenizer() -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(
        ['<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call> the user and the assistant say hello'] * 5, trainer
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|im_end|>")
    tokenizer.chat_template = CHATML
    return tokenizer


def real_tokenizer() -> PreTrainedTokenizerFast | None:
    return AutoTokenizer.from_pretrained(MODEL) if (MODEL / "tokenizer.json").exists() else None


TINY = train_tokenizer()


@pytest.fixture(scope="session", params=["tiny", "real"])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    found = TINY if request.param == "tiny" else real_tokenizer()
    if found is None:
        (pytest.fail if os.environ.get("OPENFORGE_REQUIRE") == "all" else pytest.skip)("the real model's tokenizer is not in models/")
    return found


@pytest.fixture(scope="session")
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer()


@dataclass
class Script:
    """One reply of the scripted engine."""

    text: str = ""
    closed: bool = True
    """Whether the end-of-turn token is sampled (unless max_tokens cuts the reply before)."""
    ids: list[int] | None = None
    """Instead of `text`."""
    error: Exception | None = None
    """Raised where the reply ends."""
    pause_at: int | None = None
    """Wait for ever before this token."""
    delay: float = 0.0
    """Seconds before the first token."""


class ScriptedEngine:
    """Samples scripts in order (then "ok" again and again), one token a chunk; token i of a call has log-probability -i/8."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = own_tokenizer(tokenizer)
        self.end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.scripts: list[Script] = []
        self.prompts: list[list[int]] = []
        self.samplings: list[Sampling] = []
        self.cancelled = 0
        self.paused = asyncio.Event()
        self.context_length = 1 << 30

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, version_policy: VersionPolicy = VersionPolicy.RECOMPUTE
    ) -> AsyncIterator[GenerationChunk]:
        if len(prompt_ids) >= self.context_length:
            raise PromptTooLong
        self.prompts.append(list(prompt_ids))
        self.samplings.append(sampling)
        script = self.scripts.pop(0) if self.scripts else Script("ok")
        ids = script.ids if script.ids is not None else encode(self.tokenizer, script.text)
        ids = [*ids, self.end] if script.closed else ids
        done: list[int] = []
        try:
            await asyncio.sleep(script.delay)
            for i, id in enumerate(ids):
                if i == script.pause_at:
                    self.paused.set()
                    await asyncio.Event().wait()
                await asyncio.sleep(0)
                done.append(id)
                yield GenerationChunk(tokens=(SampledToken(id, -i / 8, 7),))
                text = self.tokenizer.decode(done, skip_special_tokens=False) if sampling.stop else ""
                if id in sampling.stop_token_ids or any(stop in text for stop in sampling.stop):
                    yield GenerationChunk(finish=FinishReason.STOP)
                    return
                if len(done) == sampling.max_tokens:
                    break
            if script.error is not None:
                raise script.error
            yield GenerationChunk(finish=FinishReason.LENGTH)
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise

    async def update_weights(self, version: int, weights: Weights) -> None: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    def stats(self) -> EngineStats:
        return EngineStats(version=7, running=0, waiting=0, prompt_tokens=0, cached_tokens=0, sampled_tokens=0)

    async def close(self) -> None: ...


@dataclass
class MemoryLog:
    calls: list[Call] = field(default_factory=list)
    error: Exception | None = None
    gate: asyncio.Event | None = None
    """If set, appending waits for it."""
    appending: asyncio.Event = field(default_factory=asyncio.Event)

    async def append(self, call: Call) -> None:
        self.appending.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.calls.append(call)


def prompt_of(calls: Sequence[Call], call: Call) -> list[int]:
    """A call's prompt ids from the log alone."""
    if call.parent_id is None:
        return call.delta
    parent = next(other for other in calls if other.id == call.parent_id)
    return (prompt_of(calls, parent) + parent.sampled)[: call.shared] + call.delta


@dataclass
class House:
    """A gateway listening on a real port, and what stands around it."""

    gateway: Gateway
    engine: ScriptedEngine
    log: MemoryLog
    address: str
    stack: AsyncExitStack

    def say(self, text: str = "", **options: Any) -> None:
        """Script the engine's next reply."""
        self.engine.scripts.append(Script(text, **options))

    async def client(self, rollout: str = "r1", *, token_budget: int | None = None, sampling: Sampling | None = None) -> openai.AsyncOpenAI:
        """An unmodified SDK client on a freshly opened rollout."""
        access = self.gateway.open(rollout, sampling=sampling or Sampling(), token_budget=token_budget)
        return await self.stack.enter_async_context(
            openai.AsyncOpenAI(base_url=self.address + access.path + "/v1", api_key=access.api_key, max_retries=0)
        )

    async def anthropic(self, rollout: str = "r1") -> anthropic.AsyncAnthropic:
        access = self.gateway.open(rollout, sampling=Sampling())
        return await self.stack.enter_async_context(
            anthropic.AsyncAnthropic(base_url=self.address + access.path, api_key=access.api_key, max_retries=0)
        )

    async def recorded(self, count: int) -> list[Call]:
        while len(self.log.calls) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        return self.log.calls


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with build_house() as found:
        yield found


class build_house:
    def __init__(
        self,
        *,
        context_length: int = 1 << 20,
        patience: Patience | None = None,
        limits: Limits | None = None,
        tokenizer: PreTrainedTokenizerFast | None = None,
    ) -> None:
        self._context_length = context_length
        self._tokenizer = tokenizer or TINY
        self._patience = patience or Patience()
        self._limits = limits or Limits()

    async def __aenter__(self) -> House:
        self._stack = AsyncExitStack()
        engine, log = ScriptedEngine(self._tokenizer), MemoryLog()
        format = load_format(None, self._tokenizer)
        engine.context_length, engine.end = self._context_length, format.stop_token_ids[0]
        backend = EngineBackend(engine, format, self._tokenizer)
        gateway = Gateway(backend, log, model_name="tiny", patience=self._patience, limits=self._limits)
        address = await self._stack.enter_async_context(listen(gateway))
        return House(gateway, engine, log, address, self._stack)

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()


@pytest.fixture
def memory_log() -> MemoryLog:
    return MemoryLog()


HouseBuilder = Callable[..., build_house]


@pytest.fixture(scope="session")
def make_house() -> HouseBuilder:
    return build_house


class RunningHouse:
    """A house in a thread of its own, for clients that block."""

    def __init__(self, builder: build_house) -> None:
        self._builder = builder

    def __enter__(self) -> RunningHouse:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.house = self.wait(self._builder.__aenter__())
        self.address = self.house.address
        return self

    def __exit__(self, *_: object) -> None:
        self.wait(self._builder.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def rest(self) -> None:
        """Wait until no request is being answered and no call is being made."""

        def busy(task: asyncio.Task[Any]) -> bool:
            return "run_asgi" in repr(task) or task.get_name().startswith("call ")

        while self.house.gateway.in_flight or any(busy(task) for task in asyncio.all_tasks()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.fixture(scope="session")
def running_house() -> Iterator[RunningHouse]:
    with RunningHouse(build_house()) as running:
        running.house.gateway.open("fuzz", sampling=Sampling())
        yield running
