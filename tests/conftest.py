"""A language model small enough to train in seconds (byte tokens, ChatML, 200 thousand random parameters), and a scripted HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import uvicorn
from hypothesis import settings
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

settings.register_profile("full", deadline=None, max_examples=25)
settings.register_profile("check", deadline=None, max_examples=4)  # `make check`: every law once, in minutes
settings.load_profile("full")

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def save_tiny_model(folder: Path, *, seed: int = 0) -> Path:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|im_start|>", "<|im_end|>")])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>", chat_template=CHATML)
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        eos_token_id=fast.convert_tokens_to_ids("<|im_end|>"),
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


class serve_answers:
    """A server on a real port that answers every request by a function."""

    def __init__(self, answer: Callable[[httpx.Request], httpx.Response]) -> None:
        self._answer = answer

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        made = self._answer(httpx.Request(scope["method"], f"http://script{scope['path']}", content=body, headers=scope["headers"]))
        headers = [(name, value) for name, value in made.headers.raw if name.lower() != b"content-length"]
        await send({"type": "http.response.start", "status": made.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": made.content})

    async def __aenter__(self) -> str:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(self._serve, interface="asgi3", lifespan="off", log_level="critical", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        await self._task


@pytest.fixture
def serve_script() -> type[serve_answers]:
    return serve_answers
