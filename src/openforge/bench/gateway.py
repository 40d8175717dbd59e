"""What the gateway adds to a call, and how many calls it carries, on an engine that computes nothing.

Two paces. *Paced*: the engine gives a token every 20 ms, like a real one, to all calls at once, like one that batches; a call joins at the
next beat, and is *late* by what it takes beyond what the engine alone would. What the gateway adds is how much later it is than on the bare
server. Calls come at any moment, like those of agents that know nothing of each other; *in step*, all clients begin and end at the same
moments, the worst that can be. *Flat out*: the engine answers at once; calls a second is what one process carries.

Each client keeps a conversation of its own over one connection; a call extends a history that was posted before. The bare server streams
the same bytes without a gateway: what HTTP and the client themselves take. The LiteLLM proxy, where it is installed, stands in front of
that server. All of them take turns within one run, each in a process of its own; the gateway records durably, like in a run.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil

from openforge.bench.frame import Bar, BenchResult, at_least, at_most, median
from openforge.bench.load import PACES, Conversation, Timing
from openforge.run.models import load_tokenizer
from openforge.types import UserError

SHAPES = ((1, 4_000), (64, 4_000), (256, 4_000), (1, 100_000), (64, 100_000))
"""(concurrent streams, tokens of history)"""
CALLS = 8
"""Calls of a conversation that are measured; they lengthen its history by a few hundred tokens."""
LITELLM_QUIET = {
    "LITELLM_LOG": "ERROR",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
}
"""Its least work: no debugging, no look at the network, no keys."""
LITELLM_SECONDS = 90.0
"""How long the proxy may take to start."""


def run(
    model: Path | None, repeats: int = 3, *, shapes: Sequence[tuple[int, int]] = SHAPES, calls: int = CALLS, litellm: str | None = None
) -> BenchResult:
    """Measure with the tokenizer in the folder `model`. `litellm`: the proxy's program; else OPENFORGE_LITELLM, or what is on PATH."""
    if model is None or not (model / "tokenizer.json").is_file():
        raise UserError(f"{model}: no tokenizer here; fetch a model with `openforge models fetch`, or name another folder")
    litellm = litellm or os.environ.get("OPENFORGE_LITELLM") or shutil.which("litellm")
    with ExitStack() as stack:
        bare = stack.enter_context(process("bare server"))
        servers: list[Server] = [stack.enter_context(process("gateway", model)), bare]
        proxies: list[Server] = [stack.enter_context(_litellm(litellm, bare))] if litellm is not None else []
        rows = []
        for shape in shapes:
            # The proxy carries so few calls a second that all shapes would take it half an hour.
            rows += asyncio.run(_measure([*servers, *(proxies if shape == _barred(shapes) else [])], *shape, calls, repeats))
    longest = max(tokens for _, tokens in shapes)
    return BenchResult("gateway", [*rows, _tokenise_again(model, longest)], _bars(rows, shapes))


class Server(Protocol):
    name: str
    urls: dict[str, str]
    """Pace -> base URL."""
    pids: dict[str, int]
    """Pace -> the process that serves it."""

    def keys(self, count: int) -> dict[str, list[str]]:
        """Pace -> keys of so many rollouts that have no call yet."""
        ...


@dataclass(slots=True)
class NullServer:
    """A process of `null.py`."""

    name: str
    process: subprocess.Popen[str]
    urls: dict[str, str]
    pids: dict[str, int]

    def keys(self, count: int) -> dict[str, list[str]]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        answer: dict[str, list[str]] = _hear(self.process)
        return answer


@contextmanager
def process(name: str, *arguments: Path) -> Iterator[NullServer]:
    """The gateway, if `arguments` is a folder with a tokenizer; else the bare server."""
    command = [sys.executable, "-m", "openforge.bench.null", *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield NullServer(name, process, _hear(process), dict.fromkeys(PACES, process.pid))
        finally:
            process.kill()


def _hear(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a server of the benchmark died; its error is above")
    return json.loads(line)


@dataclass(slots=True)
class _LiteLLM:
    name: str
    urls: dict[str, str]
    pids: dict[str, int]

    def keys(self, count: int) -> dict[str, list[str]]:
        return {pace: ["sk-any"] * count for pace in PACES}


@contextmanager
def _litellm(program: str, bare: Server) -> Iterator[_LiteLLM]:
    """The proxy with one worker, like the gateway; a port each pace, since it picks its upstream by the model's name."""
    with ExitStack() as stack:
        urls, pids = {}, {}
        for pace, upstream in bare.urls.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            parameters = {"model": "openai/null", "api_base": upstream, "api_key": "sk-any"}
            (folder / "config.yaml").write_text(json.dumps({"model_list": [{"model_name": "null", "litellm_params": parameters}]}))
            port = _free_port()
            command = [program, "--config", str(folder / "config.yaml"), "--host", "127.0.0.1", "--port", str(port)]
            process = subprocess.Popen(command, env=os.environ | LITELLM_QUIET, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
            _wait_until_alive(process, f"http://127.0.0.1:{port}/health/liveliness")
            urls[pace], pids[pace] = f"http://127.0.0.1:{port}/v1", process.pid
        yield _LiteLLM("litellm", urls, pids)


def _wait_until_alive(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + LITELLM_SECONDS
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise UserError(f"bench gateway: the LiteLLM proxy did not start within {LITELLM_SECONDS:g} s") from None
            time.sleep(0.5)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _measure(servers: Sequence[Server], streams: int, history: int, calls: int, repeats: int) -> list[dict[str, Any]]:
    """One row a server: medians over the repeats."""
    taken: dict[str, list[dict[str, float]]] = {server.name: [] for server in servers}
    for _ in range(repeats):
        for server in servers:
            late = await _paced(server, streams, history, calls)
            # One client alone is in step anyway.
            in_step = await _paced(server, streams, history, calls, in_step=True) if streams > 1 else late
            taken[server.name].append(
                {
                    "late p50 ms": float(np.percentile(late, 50)),
                    "late p99 ms": float(np.percentile(late, 99)),
                    "late mean ms": float(np.mean(late)),
                    "in step p50 ms": float(np.percentile(in_step, 50)),
                    "in step p99 ms": float(np.percentile(in_step, 99)),
                    **await _flat_out(server, streams, history, calls),
                }
            )
    rows = []
    for name, figures in taken.items():
        medians = {column: median([each[column] for each in figures]) for column in figures[0]}
        rows.append({"server": name, "streams": streams, "history": history} | medians)
    return rows


async def _paced(server: Server, streams: int, history: int, calls: int, *, in_step: bool = False) -> list[float]:
    """How late each call's last byte was, in ms. Several loads where few streams would make too few calls for a percentile."""
    pace = PACES["paced"]
    random = np.random.default_rng(0)
    late: list[float] = []
    for _ in range(max(1, 4 // streams)):
        async with _conversations(server, "paced", streams, history) as conversations:
            timings = await _talk(conversations, calls, None if in_step else random)
        late += [(timing.ended - pace.due(timing.sent)) * 1000 for timing in timings]
    return late


async def _talk(conversations: Sequence[Conversation], calls: int, random: np.random.Generator | None) -> list[Timing]:
    """Clients that know nothing of each other: their first calls are spread over the time that a call takes, and between calls a client
    pauses for less than a beat, so that calls come at any moment of one. `random` is None: all start together, and none pauses.

    A first call of each is not counted, and a client whose calls are all measured goes on until the others' are, so that every call that
    counts has its full company.
    """
    pace = PACES["paced"]
    busy = set(range(len(conversations)))

    async def one(number: int) -> list[Timing]:
        # Drawn beforehand, for the same numbers whatever the order in which calls end.
        pauses = [0.0] * (calls + 1) if random is None else [random.uniform(0, pace.seconds), *random.uniform(0, pace.interval, calls)]
        timings: list[Timing] = []
        while busy:
            await asyncio.sleep(pauses[min(len(timings), calls)])
            timings.append(await conversations[number].call())
            if len(timings) > calls:
                busy.discard(number)
        return timings[1 : calls + 1]

    return [timing for each in await asyncio.gather(*map(one, busy)) for timing in each]


async def _flat_out(server: Server, streams: int, history: int, calls: int) -> dict[str, float]:
    """Calls a second, and processor time a call."""

    async def talk(conversation: Conversation) -> None:
        for _ in range(calls):
            await conversation.call()

    count, elapsed, cpu = 0, 0.0, 0.0
    for _ in range(max(1, 4 // streams)):
        async with _conversations(server, "flat out", streams, history) as conversations:
            process = psutil.Process(server.pids["flat out"])
            before, started = process.cpu_times(), time.perf_counter()
            await asyncio.gather(*map(talk, conversations))
            elapsed += time.perf_counter() - started
            after = process.cpu_times()
        cpu += after.user + after.system - before.user - before.system
        count += streams * calls
    return {"calls/s": count / elapsed, "cpu ms/call": cpu / count * 1000}


@asynccontextmanager
async def _conversations(server: Server, pace: str, streams: int, history: int) -> AsyncIterator[list[Conversation]]:
    """Each of a rollout of its own, its history posted."""
    keys = server.keys(streams)[pace]
    conversations = [Conversation(server.urls[pace], key, f"{number}:{' hello' * history}") for number, key in enumerate(keys)]
    try:
        await asyncio.gather(*(conversation.call() for conversation in conversations))
        yield conversations
    finally:
        for conversation in conversations:
            conversation.close()


def _tokenise_again(model: Path, history: int) -> dict[str, Any]:
    """What each call would take beyond this if its whole history were tokenised again."""
    core = load_tokenizer(model).backend_tokenizer
    text = " hello" * history
    times = []
    for _ in range(5):
        started = time.perf_counter()
        core.encode(text, add_special_tokens=False)
        times.append((time.perf_counter() - started) * 1000)
    return {
        "server": "(tokenising it again)",
        "streams": 1,
        "history": history,
        "late p50 ms": median(times),
        "late p99 ms": max(times),
        "late mean ms": sum(times) / len(times),
        "in step p50 ms": median(times),
        "in step p99 ms": max(times),
        "calls/s": 1000 / median(times),
        "cpu ms/call": median(times),
    }


def _bars(rows: Sequence[dict[str, Any]], shapes: Sequence[tuple[int, int]]) -> list[Bar]:
    found = {(row["server"], row["streams"], row["history"]): row for row in rows}
    streams, short = _barred(shapes)
    long = max(tokens for _, tokens in shapes)
    here, bare = found["gateway", streams, short], found["bare server", streams, short]
    bars = [
        at_most("added_p50_ms", here["late p50 ms"] - bare["late p50 ms"], 2.0),
        at_most("added_p99_ms", here["late p99 ms"] - bare["late p99 ms"], 10.0),
        at_most("history_growth", found["gateway", streams, long]["cpu ms/call"] / here["cpu ms/call"], 3.0),
    ]
    if ("litellm", streams, short) in found:
        bars.append(at_least("vs_litellm", here["calls/s"] / found["litellm", streams, short]["calls/s"], 5.0))
    return bars


def _barred(shapes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The shape that the bars are about: 64 streams with short histories, where it is measured."""
    return (64, 4_000) if (64, 4_000) in shapes else shapes[0]
