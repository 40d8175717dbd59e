"""`openforge serve`: the gateway alone, in front of a model of ours, a vLLM server or an API of text.

Invariant: whatever ends it, every call that was answered is in the directory, and every open rollout has its end there: at once when it is
stopped, at the next start when it was killed. Neither keys nor prompts are printed, but for an admin key that it had to make up.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field
from rich.console import Console
from rich.live import Live
from rich.text import Text

from openforge.agents import BASE_PATHS
from openforge.gateway import EngineBackend, Gateway, listen
from openforge.gateway.admin import Admin
from openforge.gateway.backend import Backend
from openforge.gateway.dialects import DIALECTS
from openforge.gateway.formats import load_format
from openforge.gateway.sampling import UNLIMITED
from openforge.pool import Store
from openforge.run.models import load_tokenizer, resolve_model
from openforge.run.rundir import RunDir
from openforge.types import RolloutEngine, Sampling, Settings, UserError

ADMIN_KEY = "OPENFORGE_ADMIN_KEY"
UPSTREAM_KEY = "OPENFORGE_UPSTREAM_KEY"
ENGINE_KEY = "OPENFORGE_ENGINE_KEY"


class ServedModel(Settings):
    path: Path
    """A Hugging Face folder."""
    format: str | None = None
    """How the model writes messages and tool calls; by default what its chat template shows."""


class ServedUpstream(Settings):
    url: str
    dialect: Literal["chat", "messages"] = "chat"
    model: str
    """The model's name there."""


class ServeSettings(Settings):
    """What answers, and where. The keys come from the environment: these settings are kept with the calls."""

    model: ServedModel | None = None
    engine: str | None = None
    """A vLLM server's address, that serves `model`; without it the model is run here."""
    upstream: ServedUpstream | None = None
    name: str
    """The one model's name at `/v1/models`."""
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    kv_tokens: int = Field(default=65_536, ge=64)
    """Of the embedded engine."""


def serve(settings: ServeSettings, directory: Path, *, console: Console | None = None) -> None:
    """Serve until SIGINT or SIGTERM."""
    run_dir = _open(settings, directory)
    asyncio.run(_serve(settings, run_dir, console or Console(stderr=True)))


async def _serve(settings: ServeSettings, run_dir: RunDir, console: Console) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    key = os.environ.get(ADMIN_KEY) or secrets.token_urlsafe(24)
    async with AsyncExitStack() as stack:
        stack.enter_context(run_dir.lock())
        store = stack.enter_context(Store.open(run_dir.database))
        await store.recover()
        backend = await stack.enter_async_context(open_backend(settings))
        gateway = Gateway(backend, store, model_name=settings.name)
        spoken = {dialect.name for dialect in DIALECTS}
        paths: dict[str, str] = {dialect: path for dialect, path in BASE_PATHS.items() if dialect in spoken}
        # An API of text gets the clients' own sampling parameters; an engine of ours knows none but those of the rollout.
        sampling = None if settings.upstream else Sampling(max_tokens=UNLIMITED)
        admin = Admin(gateway, store, key=key, base_paths=paths, sampling=sampling)
        address = await stack.enter_async_context(listen(gateway, host=settings.host, port=settings.port, more=admin.routes()))
        stack.push_async_callback(admin.close)
        console.print(f"Serving {settings.name} at {address}, recording into {run_dir.path}", highlight=False, soft_wrap=True)
        if not os.environ.get(ADMIN_KEY):
            console.print(f"Admin key (set {ADMIN_KEY} to choose it): {key}", highlight=False, soft_wrap=True)
        await _watch(gateway, store, stop, console)
    console.print("Stopped; everything recorded is kept.", highlight=False)


async def _watch(gateway: Gateway, store: Store, stop: asyncio.Event, console: Console) -> None:
    """Show what is open until it is time to stop. Raises what the log failed with, once it has."""
    before = store.counts().calls

    def line() -> Text:
        return Text(f"{gateway.open_rollouts} open rollouts, {gateway.in_flight} calls in flight, {before + gateway.recorded} recorded")

    live = Live(get_renderable=line, console=console, refresh_per_second=2, transient=True)
    with live if console.is_terminal else nullcontext():
        while not stop.is_set() and gateway.fault is None:
            try:
                await asyncio.wait_for(stop.wait(), 0.5)
            except TimeoutError:
                continue
    if gateway.fault is not None:
        raise gateway.fault


@asynccontextmanager
async def open_backend(settings: ServeSettings) -> AsyncIterator[Backend]:
    """What answers. Raises UserError where it cannot be had."""
    if settings.upstream is not None:
        from openforge.gateway.upstream import APIS, UpstreamBackend

        api = APIS[settings.upstream.dialect](settings.upstream.url, _upstream_key(settings.upstream, os.environ), settings.upstream.model)
        try:
            yield UpstreamBackend(api)
        finally:
            await api.close()
        return
    assert settings.model is not None
    tokenizer = load_tokenizer(settings.model.path)
    format = load_format(settings.model.format, tokenizer)
    engine = await _engine(settings, settings.model.path)
    try:
        yield EngineBackend(engine, format, tokenizer)
    finally:
        await engine.close()


async def _engine(settings: ServeSettings, model_dir: Path) -> RolloutEngine:
    from openforge.engines.rollout import TorchEngine, VllmEngine

    if settings.engine is not None:
        return await VllmEngine.connect(settings.engine, os.environ.get(ENGINE_KEY))
    return TorchEngine(model_dir, kv_tokens=settings.kv_tokens)


def _upstream_key(upstream: ServedUpstream, environ: Mapping[str, str]) -> str:
    usual = {"chat": "OPENAI_API_KEY", "messages": "ANTHROPIC_API_KEY"}[upstream.dialect]
    key = environ.get(UPSTREAM_KEY) or environ.get(usual)
    if not key:
        raise UserError(f"the upstream's API key is missing: set {UPSTREAM_KEY} (or {usual})")
    return key


def make_settings(
    *,
    model: Path | None,
    format: str | None,
    engine: str | None,
    upstream: str | None,
    upstream_dialect: str,
    upstream_model: str | None,
    **rest: Any,
) -> ServeSettings:
    """From the command line's options. Raises UserError for options that do not go together."""
    if upstream is not None:
        if model is not None or engine is not None:
            raise UserError("--upstream stands alone: leave out --model and --engine")
        if upstream_model is None:
            raise UserError("--upstream needs --upstream-model: the model's name there")
        if upstream_dialect not in ("chat", "messages"):
            raise UserError(f"--upstream-dialect {upstream_dialect}: it must be chat or messages")
        there = ServedUpstream.model_validate({"url": upstream, "dialect": upstream_dialect, "model": upstream_model})
        return ServeSettings(upstream=there, name=upstream_model, **rest)
    if model is None:
        raise UserError("say what to serve: --model FOLDER, --engine URL with --model FOLDER, or --upstream URL")
    folder = resolve_model(str(model), Path.cwd()).resolve()
    return ServeSettings(model=ServedModel(path=folder, format=format), engine=engine, name=folder.name, **rest)


def _open(settings: ServeSettings, directory: Path) -> RunDir:
    """A new directory, or the one of an earlier `serve` of the same model."""
    run_dir = RunDir(directory.absolute())
    kept = {"serve": settings.model_dump(mode="json", exclude={"host", "port"})}
    if run_dir.config.is_file():
        found = yaml.safe_load(run_dir.config.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or "serve" not in found:
            raise UserError(f"{directory} holds a run: give another --dir")
        if found["serve"]["name"] != settings.name or found["serve"]["model"] != kept["serve"]["model"]:
            raise UserError(f"{directory} holds calls of {found['serve']['name']}: give another --dir")
    else:
        run_dir = RunDir.create(directory)
        run_dir.config.write_text(yaml.safe_dump(kept, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return run_dir
