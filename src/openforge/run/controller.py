"""The controller: agents produce rollouts while the trainer trains on those that finished.

Invariant: units are launched, finished, taken and committed through the scheduler and the pool only, so that the staleness bound holds and
a crash at any moment costs the steps since the last checkpoint and nothing that was recorded.

    launcher ──► units of G rollouts ──► scheduler ──► trainer ──► weights ──► rollout engine
                     (agents)              (window)      (thread)      └► every K steps: checkpoint
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn, TypeVar

from openforge.engines.training import TrainEngine
from openforge.run.batch import Batch, make_batch, read_groups
from openforge.run.checkpoints import Checkpoints
from openforge.run.config import RunConfig
from openforge.run.producer import Producer
from openforge.run.services import Services
from openforge.types import UserError

T = TypeVar("T")
Row = dict[str, Any]

STALL_SECONDS = 600.0
"""A trainer that has waited for so long wants to be looked at."""


@dataclass(kw_only=True)
class Controller:
    """One training run, from its first missing step to its last."""

    config: RunConfig
    services: Services
    trainer: TrainEngine
    checkpoints: Checkpoints
    producer: Producer
    report: Callable[[Row, Mapping[str, Any]], None]
    """Takes each step's metrics and the scheduler's snapshot."""
    after_step: Callable[[int], Awaitable[None]]
    """Awaited between two steps: evaluation."""
    stalled: Callable[[str], None]
    """Takes what every unit waits for, when the trainer has waited for `STALL_SECONDS`."""
    step: int = 0
    """Optimizer steps done."""
    _stop: bool = False
    _started: float = field(default_factory=time.monotonic)

    async def run(self) -> None:
        """Train until the last step or `stop`. Rollouts then in flight end as cancelled."""
        self._sampled, self._reported = self.services.engine.stats().sampled_tokens, time.monotonic()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trainer")
        try:
            async with asyncio.TaskGroup() as group:
                producer = group.create_task(self.producer.run())
                await self._consume()
                producer.cancel()
        except BaseExceptionGroup as failures:
            raise first_failure(failures) from None
        finally:
            self._thread.shutdown()

    def stop(self) -> None:
        """End the run after the step under way."""
        self._stop = True
        self.producer.wake()

    async def _consume(self) -> None:
        train = self.config.train
        while self.step < train.steps:
            began = time.monotonic()
            numbers = await self._take(began)
            if numbers is None:
                break
            await self._train(numbers, waited=time.monotonic() - began)
            if self.step % train.checkpoint_every == 0:
                await self._checkpoint()
            if self.step < train.steps and not self._stop:
                await self.after_step(self.step)
        await self._checkpoint()

    async def _take(self, began: float) -> list[int] | None:
        """Wait for the units of a step; None when the run is stopped first. A long wait is told of once, with what every unit waits for."""
        patience: float | None = STALL_SECONDS
        while not self._stop:
            if (numbers := self.producer.take()) is not None:
                return numbers
            try:
                async with asyncio.timeout(None if patience is None else began + patience - time.monotonic()):
                    await self.producer.progress()
            except TimeoutError:
                patience = None
                self.stalled(self.producer.describe())
        return None

    async def _train(self, numbers: list[int], *, waited: float) -> None:
        """One optimizer step on the units `numbers`, then the new weights to the engine."""
        began = time.monotonic()
        version = self.trainer.version
        batch = await self._in_trainer(lambda: self._batch(numbers))
        if batch.row["scored"] == 0:
            await self._give_up(numbers, batch)
        row: Row = {"step": self.step + 1, "version": version, **batch.row}
        if batch.tree is not None:
            trees, temperature = [batch.tree], self.config.rollout.sampling.temperature
            trained = await self._in_trainer(lambda: self.trainer.step(trees, temperature=temperature))
            row |= trained | {"train_tokens_per_second": trained["tokens_per_second"]}
            await self.services.engine.update_weights(self.trainer.version, self.trainer.weights())
        self.step += 1
        self.checkpoints.uncommitted[self.step] = numbers
        self.producer.published()
        sampled, now = self.services.engine.stats().sampled_tokens, time.monotonic()
        row["sample_tokens_per_second"] = (sampled - self._sampled) / (now - self._reported)
        self._sampled, self._reported = sampled, now
        row |= {"wait_seconds": waited, "step_seconds": now - began + waited, "train_seconds": now - began, "elapsed": now - self._started}
        row["domains"] = self.producer.domains.row(batch.domains)
        self.report(row, asdict(self.producer.scheduler.snapshot()))

    def _batch(self, numbers: list[int]) -> Batch:
        trainer = self.trainer
        return make_batch(
            read_groups(self.services.store, numbers, self.config.units_per_group),
            self.config.train,
            version=trainer.version,
            vocabulary=trainer.vocabulary,
            context_length=trainer.context_length,
        )

    async def _give_up(self, numbers: list[int], batch: Batch) -> NoReturn:
        """A step in which no rollout at all was scored is a broken set-up, not a hard batch: say so instead of burning hours.

        Its units are evicted, so that the run goes on with fresh ones once the set-up is mended.
        """
        await self._checkpoint()
        for number in numbers:
            await self.services.store.evict_unit(number, "no rollout was scored")
        first, run_dir = batch.rollouts[0], self.services.runner.run_dir
        raise UserError(
            f"step {self.step + 1}: none of {len(batch.rollouts)} rollouts was scored; the first ended as {first.outcome} "
            f"({first.detail}); its output is in {run_dir.logs / first.id}; mend it, then `openforge resume {run_dir.path}`"
        )

    async def _checkpoint(self) -> None:
        if self.checkpoints.uncommitted:
            path = self.checkpoints.run_dir.checkpoint(self.step)
            await self.checkpoints.commit(self.step, self.trainer.version, lambda: self.trainer.save(path))

    async def _in_trainer(self, work: Callable[[], T]) -> T:
        """Run in the trainer's thread; a step under way is never left half-done, for cancellation waits at the thread's shutdown."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def first_failure(failures: BaseExceptionGroup) -> BaseException:
    """What went wrong first among tasks that were then all cancelled."""
    failure: BaseException = failures
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure
