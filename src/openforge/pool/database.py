"""The one place that knows which database stands behind the pool.

Invariant: a committed transaction survives `kill -9` of the process, and every database failure leaves here as one clear line.

SQLite runs in WAL mode with synchronous=NORMAL. A commit then ends in write(2) to the log: the page cache belongs to the kernel, so the
death of the process loses nothing. What FULL adds is an fsync for each commit, against the death of the machine; there NORMAL loses at
most the last moments, and loses them from the end: the state that is left is one the run was in, with every checkpoint row after the
calls that it was trained on. The run then goes on from there like after any crash, so the price of FULL (milliseconds before a reply
ends, on ordinary disks) buys nothing that matters.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import Engine, Table, create_engine, event, select
from sqlalchemy.dialects.sqlite import Insert, insert
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from openforge.pool.schema import SCHEMA_VERSION, meta, metadata
from openforge.types import UserError

BUSY_SECONDS = 5.0
"""How long a write waits for another process's lock."""


class StoreError(UserError):
    """The database cannot be read or written. Nothing that was committed before is lost."""


_REMEDIES = (
    ("full", "free disk space, then resume the run"),
    ("disk I/O error", "free disk space or check the disk, then resume the run"),
    ("locked", "another process is writing to this run; stop it first"),
    ("unable to open", "check that the folder exists and is writable"),
    ("readonly", "check that the file and its folder are writable"),
    ("malformed", "the file is damaged; restore it from a copy"),
    ("not a database", "the file is damaged or is something else; restore it from a copy"),
)


@contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """Turn a failure of the database under `path` into a `StoreError`."""
    try:
        yield
    except DBAPIError as error:
        reason = str(error.orig)
        remedy = next((remedy for sign, remedy in _REMEDIES if sign in reason), "the run's database failed")
        raise StoreError(f"{path}: {reason}: {remedy}") from error


def connect(path: Path) -> Engine:
    """Open the database, creating the tables of a new one. Raises `StoreError`, also for a schema this version does not know."""
    engine = create_engine(URL.create("sqlite", database=str(path)), connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False})
    event.listen(engine, "connect", _configure)
    with clear_errors(path), engine.begin() as connection:
        metadata.create_all(connection)
        connection.execute(insert_once(meta).values(key="schema", value=SCHEMA_VERSION))
        found = connection.execute(select(meta.c.value).where(meta.c.key == "schema")).scalar_one()
    if found != SCHEMA_VERSION:
        raise StoreError(f"{path}: schema version {found}, this openforge reads {SCHEMA_VERSION}: open it with the version that wrote it")
    return engine


def insert_once(table: Table) -> Insert:
    """INSERT that leaves an existing row with the same key as it is."""
    return insert(table).on_conflict_do_nothing()


def copy_log(engine: Engine) -> None:
    """Copy what SQLite's log holds into the database file. This waits for the disk; others may read and write meanwhile."""
    # Where it fails (a full disk), the log stays as it is, and a later call copies it.
    with suppress(DBAPIError), engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")


def _configure(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint=0")
