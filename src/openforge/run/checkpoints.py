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

from openforge.pool import Store
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

    async def commit(self, step: int, version: int, save: Callable[[], Any]) -> None:
        """Have `save` write the folder of `step`, commit it, then drop what is older than the newest `KEPT`."""
        path = self.run_dir.checkpoint(step)
        try:
            await asyncio.to_thread(save)
        except OSError as error:
            raise UserError(
                f"cannot write checkpoint {path}: {error.strerror or error}; free space, then `openforge resume {self.run_dir.path}`"
            ) from error
        await self.store.commit_checkpoint(step, version, str(path), self.uncommitted)
        self.uncommitted = {}
        for old in self.run_dir.checkpoints()[:-KEPT]:
            await asyncio.to_thread(shutil.rmtree, old)
