"""Commits: at once where a single call is written, else many concurrent writes in one transaction.

Invariant: an awaited write returns only after the transaction that holds it is committed, and writes are applied in the order they were
asked for. While one transaction is being committed the next writes gather, so the cost of a commit is shared by all who wait for it. The
event loop never waits for the disk, nor for long.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine

from openforge.pool.codec import call_row
from openforge.pool.database import StoreError, clear_errors, copy_log, insert_once
from openforge.pool.schema import calls
from openforge.types import Call

T = TypeVar("T")

_INSERT_CALL = insert_once(calls)
_MOST_PER_COMMIT = 1024
_SHARE = 0.1
"""Of its time, that the event loop may give to writing. On a slow disk, one write uses up what comes in for a while."""
_CREDIT = 0.001
"""Seconds of it that are kept for a burst."""
_MOST_UNCOPIED = 256
"""Commits until the thread copies SQLite's log into the database."""


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
    """One writes at a time: the event loop itself a call's row, while that is quick; a thread all else."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine = engine
        self._path = path
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._turn = threading.Lock()
        self._handed = 0
        """Writes that the thread has not yet committed."""
        self._credit = 0.0
        """Seconds that the event loop may write for."""
        self._credited = 0.0
        self._uncopied = 0
        """Commits that are still in SQLite's log alone."""
        self.commits = 0
        """Transactions so far."""

    async def do(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction; its exception reaches this caller alone and leaves no trace in the database."""
        return await self._submit(work)  # type: ignore[no-any-return]

    async def append(self, call: Call) -> None:
        if not self._append_here(call):
            await self._submit(call)

    def _append_here(self, call: Call) -> bool:
        """Write the call in the event loop, if the thread has nothing to write and little time was spent so of late.

        A row takes 0.1 ms. Handing it to the thread takes many times that: the thread waits for the interpreter's lock, and the result for
        its place in the loop, behind the tokens of all other streams.
        """
        with self._turn:
            start = time.monotonic()
            self._credit = min(_CREDIT, self._credit + (start - self._credited) * _SHARE)
            self._credited = start
            if self._handed or self._credit <= 0 or self._uncopied >= _MOST_UNCOPIED:
                return False
            with self._transaction() as connection:
                connection.execute(_INSERT_CALL, [call_row(call)])
            self._credit -= time.monotonic() - start
        return True

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with clear_errors(self._path), self._engine.begin() as connection:
            yield connection
        self.commits += 1
        self._uncopied += 1

    async def _submit(self, work: Call | Callable[[Connection], Any]) -> Any:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pool-writer", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        write = _Write(work, loop, loop.create_future())
        with self._turn:
            self._handed += 1
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
            with self._turn:
                self._handed -= len(batch)
            for loop in {write.loop for write in batch}:
                with suppress(RuntimeError):  # that loop was closed; nobody waits there any more
                    loop.call_soon_threadsafe(_settle, [write for write in batch if write.loop is loop])
            if self._uncopied >= _MOST_UNCOPIED:
                copy_log(self._engine)
                self._uncopied = 0

    def _commit(self, batch: list[_Write]) -> None:
        try:
            with self._transaction() as connection:
                _apply(connection, batch)
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
