"""Group commit: many concurrent writes share one transaction.

Invariant: an awaited write returns only after the transaction that holds it is committed, and writes are applied in the order they were
asked for. While one transaction is being committed the next writes gather, so the cost of a commit is shared by all who wait for it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine

from openforge.pool.codec import call_row
from openforge.pool.database import StoreError, clear_errors, insert_once
from openforge.pool.schema import calls
from openforge.types import Call

T = TypeVar("T")

_INSERT_CALL = insert_once(calls)
_MOST_PER_COMMIT = 1024


@dataclass(slots=True, eq=False)
class _Write:
    work: Call | Callable[[Connection], Any]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None

    def settle(self) -> None:
        if self.done.done():  # the one who waited was cancelled; the write stands all the same
            return
        if self.error is None:
            self.done.set_result(self.result)
        else:
            self.done.set_exception(self.error)


class Writer:
    """The one thread that writes."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine = engine
        self._path = path
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.commits = 0
        """Transactions so far."""

    async def do(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction; its exception reaches this caller alone and leaves no trace in the database."""
        return await self._submit(work)  # type: ignore[no-any-return]

    async def append(self, call: Call) -> None:
        await self._submit(call)

    async def _submit(self, work: Call | Callable[[Connection], Any]) -> Any:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pool-writer", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        write = _Write(work, loop, loop.create_future())
        self._queue.put(write)
        return await write.done

    def close(self) -> None:
        """Return when everything asked for so far is committed."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            with suppress(queue.Empty):
                while len(batch) < _MOST_PER_COMMIT:
                    write = self._queue.get_nowait()
                    if write is None:
                        self._queue.put(None)
                        break
                    batch.append(write)
            self._commit(batch)
            for loop in {write.loop for write in batch}:
                with suppress(RuntimeError):  # that loop was closed; nobody waits there any more
                    loop.call_soon_threadsafe(_settle, [write for write in batch if write.loop is loop])

    def _commit(self, batch: list[_Write]) -> None:
        try:
            with clear_errors(self._path), self._engine.begin() as connection:
                _apply(connection, batch)
            self.commits += 1
        except StoreError as error:
            for write in batch:
                write.error = error
        except BaseException as error:
            # One of them is at fault and undid the others' work too: find it by doing each alone.
            if len(batch) == 1:
                batch[0].error = error
            else:
                for write in batch:
                    self._commit([write])


def _apply(connection: Connection, batch: list[_Write]) -> None:
    rows: list[dict[str, Any]] = []
    for write in batch:
        if isinstance(write.work, Call):
            rows.append(call_row(write.work))
            continue
        if rows:
            connection.execute(_INSERT_CALL, rows)
            rows = []
        write.result = write.work(connection)
    if rows:
        connection.execute(_INSERT_CALL, rows)


def _settle(writes: list[_Write]) -> None:
    for write in writes:
        write.settle()
