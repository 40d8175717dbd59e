"""A whole run: cold start, evaluation, reinforcement learning, evaluation, report.

Invariant: every phase leaves its result in the run directory before the next begins, so going on after a crash repeats no finished phase.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from openforge.engines.training import TrainEngine
from openforge.pool import Recovery, Store
from openforge.run.checkpoints import Checkpoints
from openforge.run.config import RunConfig, save_resolved
from openforge.run.controller import Controller
from openforge.run.evaluate import BASE, END, START, evaluate
from openforge.run.live import LiveView
from openforge.run.metrics import MetricsWriter, read_metrics
from openforge.run.models import resolve_model
from openforge.run.producer import open_producer
from openforge.run.report import write_report
from openforge.run.rundir import RunDir
from openforge.run.services import Services, half_the_cores, services
from openforge.run.sft import fine_tune
from openforge.tasks import load_tasks
from openforge.types import UserError

BASE_TASKS = 32
"""The base model is only looked at, for the record of what the cold start added; the run's claim rests on the other evaluations."""


def train(config: RunConfig, run_dir: RunDir) -> bool:
    """Start the run that `config` describes, or go on with what `run_dir` holds of it. True when it reached its end."""
    with run_dir.lock(), MetricsWriter(run_dir) as metrics, LiveView(total_steps=config.train.steps, title=config.name) as view:
        return asyncio.run(Run(config, run_dir, metrics, view).go())


def evaluation(config: RunConfig) -> list[dict[str, object]]:
    """Only evaluate: the held-out tasks with the run file's model, in a run directory of its own."""

    if not config.tasks.eval_sets():
        raise UserError("this run file names no held-out tasks: add `tasks.eval`")

    async def go() -> list[dict[str, object]]:
        path = config.run_dir.with_name(f"{config.run_dir.name}-eval-{time.strftime('%Y%m%d-%H%M%S')}")
        run_dir = RunDir.create(path)
        save_resolved(config, run_dir.config)
        with MetricsWriter(run_dir) as metrics, LiveView(total_steps=0, title=config.name) as view:
            run = Run(config, run_dir, metrics, view)
            with Store.open(run_dir.database) as store:
                async with services(config, run_dir, store, resolve_model(config.model.path, config.base_dir)) as running:
                    return await run.evaluate(running, START, 0)

    return asyncio.run(go())


def cold_start(config: RunConfig, out: Path) -> Path:
    """Only fine-tune: the run file's model on its `sft` transcripts, into the model folder `out`."""
    if config.sft is None:
        raise UserError("this run file has no `sft` section: add one with `data: transcripts.jsonl`")
    if out.exists():
        raise UserError(f"{out} exists: give another folder with --out, or remove it")
    base = resolve_model(config.model.path, config.base_dir)
    with LiveView(total_steps=0, title=config.name) as view:
        engine = fine_tune(
            base,
            config.sft,
            train=config.train,
            format_name=config.model.format,
            seed=config.seed,
            report=lambda row, step, steps: view.phase(f"fine-tuning {step}/{steps}: loss {row['loss']:.3f}"),
        )
    engine.save(out)
    return out


class Run:
    def __init__(self, config: RunConfig, run_dir: RunDir, metrics: MetricsWriter, view: LiveView) -> None:
        self._config, self._run_dir, self._metrics, self._view = config, run_dir, metrics, view
        self._tasks = load_tasks(config.tasks.train)
        self._held_out = {name: load_tasks(path)[: config.eval.limit] for name, path in config.tasks.eval_sets().items()}
        self._done: set[tuple[str, str, int]] = set()

    async def go(self) -> bool:
        """True when the run reached its end, False when Ctrl-C stopped it."""
        base = resolve_model(self._config.model.path, self._config.base_dir)
        with Store.open(self._run_dir.database) as store:
            checkpoints = Checkpoints(run_dir=self._run_dir, store=store)
            recovery = await checkpoints.recover()
            self._metrics.rewind(recovery.step)
            rows = read_metrics(self._run_dir.metrics)
            self._done = {(row["label"], row["set"], row["step"]) for row in rows if row["kind"] == "eval"}
            start = base if recovery.checkpoint is None else self._run_dir.checkpoint(recovery.step)
            async with services(self._config, self._run_dir, store, start) as running:
                trainer = await self._trainer(running, recovery, base, checkpoints)
                if recovery.step == 0:
                    await self.evaluate(running, START, 0)
                finished = await self._learn(running, recovery, trainer, checkpoints)
                if finished:
                    await self.evaluate(running, END, self._config.train.steps)
        self._view.phase("writing the report")
        write_report(self._run_dir.path)
        return finished

    async def _trainer(self, running: Services, recovery: Recovery, base: Path, checkpoints: Checkpoints) -> TrainEngine:
        """The training engine as the newest checkpoint has it; on a new run the base model, after its cold start if there is one."""
        settings, path = self._config.train, self._run_dir.checkpoint(recovery.step)
        if recovery.checkpoint is not None:
            trainer = await asyncio.to_thread(TrainEngine.restore, path, settings, threads=half_the_cores())
        elif self._config.sft is None:
            trainer = await asyncio.to_thread(TrainEngine, base, settings, threads=half_the_cores())
        else:
            await self.evaluate(running, BASE, 0)
            await asyncio.to_thread(self._cold_start, base, path)
            await checkpoints.commit(0, 0, lambda: None)
            trainer = await asyncio.to_thread(TrainEngine, path, settings, threads=half_the_cores())
        # Weight versions are never used twice: what was sampled by weights that a crash lost keeps numbers of its own.
        trainer.version = max(trainer.version, await asyncio.to_thread(running.store.newest_version)) + 1
        await running.engine.update_weights(trainer.version, trainer.weights())
        return trainer

    def _cold_start(self, base: Path, path: Path) -> None:
        assert self._config.sft is not None
        began = time.monotonic()

        def report(row: Mapping[str, Any], step: int, steps: int) -> None:
            self._view.phase(f"fine-tuning {step}/{steps}")
            self._metrics.write({"kind": "sft", "step": 0, "sft_step": step, "elapsed": time.monotonic() - began, **row})

        config = self._config
        fine_tune(base, self._config.sft, train=config.train, format_name=config.model.format, seed=config.seed, report=report).save(path)

    async def _learn(self, running: Services, recovery: Recovery, trainer: TrainEngine, checkpoints: Checkpoints) -> bool:
        config = self._config
        await running.store.put_tasks(self._tasks)
        controller = Controller(
            config=config,
            services=running,
            trainer=trainer,
            checkpoints=checkpoints,
            producer=open_producer(config, running, self._tasks, recovery),
            report=self._report,
            after_step=lambda step: self._evaluate_now_and_then(running, step),
            stalled=self._stalled,
            step=recovery.step,
        )
        self._view.phase("training")
        with _interrupts(controller.stop, self._view):
            await controller.run()
        return controller.step >= config.train.steps

    def _report(self, row: Mapping[str, Any], snapshot: Mapping[str, Any]) -> None:
        self._view.update(self._metrics.write({"kind": "step", **row}), snapshot)

    def _stalled(self, description: str) -> None:
        with self._run_dir.stalls.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}: {description}\n\n")
        self._view.phase(f"the trainer waits for rollouts; {self._run_dir.stalls} says which")

    async def _evaluate_now_and_then(self, running: Services, step: int) -> None:
        if self._config.eval.every and step % self._config.eval.every == 0:
            await self.evaluate(running, f"step {step}", step)

    async def evaluate(self, running: Services, label: str, step: int) -> list[dict[str, object]]:
        """The rows of all held-out sets that have no row with this label yet."""
        rows = []
        for name, tasks in self._held_out.items():
            if label == BASE:
                tasks = tasks[:BASE_TASKS]
            if (label, name, step) in self._done:
                continue
            row = await evaluate(
                running.runner,
                tasks,
                name=name,
                label=label,
                step=step,
                sampling=self._config.eval.sampling or replace(self._config.rollout.sampling, temperature=0.0),
                concurrency=self._config.rollout.concurrency,
                on_progress=lambda done, total, name=name: self._view.phase(f"evaluating {name} ({label}) {done}/{total}"),  # type: ignore[misc]
            )
            self._done.add((label, name, step))
            rows.append(self._metrics.write(row))
            self._view.update(rows[-1])
        return rows


class _interrupts:
    """While inside, the first Ctrl-C (or SIGTERM) calls `stop`; the next one interrupts at once, as usual."""

    def __init__(self, stop: Callable[[], None], view: LiveView) -> None:
        self._stop, self._view = stop, view

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGINT, self._on_signal)
        self._loop.add_signal_handler(signal.SIGTERM, self._on_signal)

    def __exit__(self, *_: object) -> None:
        self._loop.remove_signal_handler(signal.SIGINT)
        self._loop.remove_signal_handler(signal.SIGTERM)

    def _on_signal(self) -> None:
        self.__exit__()
        self._view.phase("stopping after this step; press Ctrl-C again to stop at once")
        self._stop()
