"""Checkpoints of a run.

Invariant: a checkpoint's files are complete and named before the pool commits, in one transaction, which units its weights contain. So
after any crash the newest committed checkpoint and the pool agree, and a unit is either in the weights or waiting to be trained.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from safetensors import SafetensorError

from openforge.engines.training import verify_checkpoint
from openforge.pool import Recovery, Store
from openforge.run.rundir import RunDir
from openforge.types import UserError

KEPT = 2
"""The newest checkpoint, and the one before it in case the disk fails under the newest."""


@dataclass(kw_only=True)
class Checkpoints:
    run_dir: RunDir
    store: Store
    uncommitted: dict[int, list[int]] = field(default_factory=dict)
    """Step → units it trained, for the steps since the last checkpoint."""

    async def recover(self) -> Recovery:
        """Where the run stands, by the newest committed checkpoint whose files are there. Damaged files raise `UserError`."""
        rows = await asyncio.to_thread(self.store.checkpoints)
        there = [row.step for row in rows if self.run_dir.checkpoint(row.step).is_dir()]
        newest = max(there, default=-1)
        recovery = await self.store.recover(lost=[row.step for row in rows if row.step > newest])
        if recovery.checkpoint is not None:
            try:
                await asyncio.to_thread(verify_checkpoint, self.run_dir.checkpoint(newest))
            except UserError as error:
                raise UserError(f"{error}; remove that checkpoint's folder to go on from the one before it") from None
        return recovery

    async def commit(self, step: int, version: int, save: Callable[[], Any]) -> None:
        """Have `save` write the folder of `step`, commit it, then drop what is older than the newest `KEPT`."""
        path = self.run_dir.checkpoint(step)
        try:
            await asyncio.to_thread(save)
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or error
            remedy = f"free space, then `openforge resume {self.run_dir.path}`"
            raise UserError(f"cannot write checkpoint {path}: {reason}: {remedy}") from error
        await self.store.commit_checkpoint(step, version, str(path), self.uncommitted)
        self.uncommitted = {}
        for old in self.run_dir.checkpoints()[:-KEPT]:
            await asyncio.to_thread(shutil.rmtree, old)
