"""Processes that stay, as ranks of one group, and run jobs that a test sends them."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from forest_cases import float64_model
from test_carry import checkpointed
from test_exactness import tree_loss

from openforge.engines.training import TrainEngine, TrainSettings
from openforge.engines.training.parallel import join, whole
from openforge.trees.carry import walk
from openforge.trees.cost import Cost
from openforge.trees.partition import partition
from openforge.trees.split import split
from openforge.types import TokenTree

MODELS = ["llama", "qwen3_moe"]


def gradients(name: str, tree: TokenTree, budget: int, recompute: bool) -> tuple[dict[str, torch.Tensor], int]:
    """Of this rank's share of a float64 model's loss, and all others': summed. And how many contributions are this rank's."""
    model = float64_model(name)
    cost = Cost.of(model)
    ranks = join(model)
    share = split(tree, ranks.count, cost)[ranks.index]
    with checkpointed(model, recompute), ranks.summed_gradients():
        walk(partition(share.tree, budget), lambda piece, memory: tree_loss(model, piece.tree, memory))
    summed = {name: whole(p.grad) if p.grad is not None else torch.zeros_like(p) for name, p in model.named_parameters()}
    return summed, len(share.contributions)


Steps = tuple[list[dict[str, float]], dict[str, torch.Tensor], dict[str, Any]]


def steps(folder: Path, settings: TrainSettings, batches: list[list[TokenTree]], restore: bool, saved: Path | None) -> Steps:
    """Each step's metrics; then the weights, and the log-probabilities of the last batch."""
    engine = (TrainEngine.restore if restore else TrainEngine)(folder, settings)
    metrics = [engine.step(batch) for batch in batches]
    if saved is not None:
        engine.save(saved)
    weights = {name: tensor.clone() for name, tensor in engine.weights().items()}
    return metrics, weights, engine.logprobs(batches[-1][0])


def different(folder: Path, settings: TrainSettings, trees: list[TokenTree], trained: bool) -> None:
    """One step, or log-probabilities, on other trees on every rank."""
    engine, rank = TrainEngine(folder, settings), int(os.environ["RANK"])
    if trained:
        engine.step(trees[rank:])
    else:
        engine.logprobs(trees[rank])


JOBS: dict[str, Callable[..., Any]] = {"gradients": gradients, "steps": steps, "different": different}


def serve(rank: int, count: int, port: int, connection: Connection) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()})
    torch.set_num_threads(1)
    while (job := connection.recv()) is not None:
        try:
            connection.send((True, JOBS[job[0]](*job[1:])))
        except Exception:
            connection.send((False, traceback.format_exc()))


class RankPool:
    """`count` processes; `run` gives the results of all."""

    def __init__(self, count: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        context = multiprocessing.get_context("spawn")
        self._ends = []
        self._processes = []
        for rank in range(count):
            end, other = context.Pipe()
            self._ends.append(end)
            self._processes.append(context.Process(target=serve, args=(rank, count, port, other), daemon=True))
            self._processes[-1].start()

    def run(self, *job: Any) -> list[Any]:
        for end in self._ends:
            end.send(job)
        results = [end.recv() for end in self._ends]
        assert all(done for done, _ in results), next(result for done, result in results if not done)
        return [result for _, result in results]

    def close(self) -> None:
        for end, process in zip(self._ends, self._processes, strict=True):
            end.send(None)
            process.join(20)
            process.kill()
