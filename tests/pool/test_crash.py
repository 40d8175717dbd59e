"""What survives: kill -9, a full disk, a lock, a damaged file."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from openforge.pool import Store, StoreError, database
from openforge.types import Call, UserError

WRITER = """
import asyncio, resource, signal, sys
from pathlib import Path
from openforge.pool import Store, StoreError
from openforge.types import Call, FinishReason, Sampling

path, file_limit = Path(sys.argv[1]), int(sys.argv[2])
store = Store.open(path)
if file_limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

def call(id):
    return Call(id=id, rollout_id="r", index=0, parent_id=None, shared=0, delta=list(range(300)), sampled=list(range(300)),
                logprobs=[-0.1] * 300, versions=[0] * 300, finish=FinishReason.STOP, sampling=Sampling(), dialect="chat",
                request={"messages": [{"content": id * 20}]}, response={"content": id * 20}, started_at=0.0, ended_at=1.0)

async def agent(number):
    for turn in range(1_000_000):
        id = f"{number}-{turn}"
        await store.append(call(id))
        sys.stdout.write(id + "\\n")
        sys.stdout.flush()

async def main():
    await asyncio.gather(*(agent(number) for number in range(8)))

try:
    asyncio.run(main())
except StoreError as error:
    sys.exit(str(error))
"""


def _writer(path: Path, file_limit: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), str(file_limit)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("moment", [1, *(pytest.param(random.Random(i).randrange(2, 2000), marks=pytest.mark.slow) for i in range(5))])
def test_kill_9_loses_no_acknowledged_call(tmp_path: Path, moment: int) -> None:
    path = tmp_path / "run.db"
    process = _writer(path)
    assert process.stdout is not None
    acknowledged = [process.stdout.readline().strip() for _ in range(moment)]
    process.send_signal(signal.SIGKILL)
    acknowledged += process.communicate()[0].split("\n")[:-1]  # what lies in the pipe; a line cut short is no acknowledgement
    with Store.open(path) as store:
        kept = {call.id for call in store.calls("r")}
        assert all(len(store.sequence(id)) == 600 for id in acknowledged[-5:])
    assert len(acknowledged) >= moment
    assert set(acknowledged) <= kept


def test_a_full_disk_is_one_clear_line_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    process = _writer(path, file_limit=600_000)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.strip().count("\n") == 0
    assert "free disk space" in err
    assert str(path) in err
    acknowledged = out.split()
    with Store.open(path) as store:
        assert acknowledged
        assert set(acknowledged) <= {call.id for call in store.calls("r")}


async def test_the_store_goes_on_when_the_disk_has_room_again(store: Store, make_call: Callable[..., Call]) -> None:
    await store.append(make_call("before"))
    with store._engine.connect() as connection:  # the limit holds for this pooled connection, which the writer gets next
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StoreError, match="full"):
        await store.append(make_call("large", delta=[(i * 7919) % 50_000 for i in range(50_000)]))
    with store._engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count=1000000")
    await store.append(make_call("after"))
    assert {call.id for call in store.calls("r")} == {"before", "after"}


async def test_a_locked_database_is_a_clear_error(tmp_path: Path, make_call: Callable[..., Call], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    path = tmp_path / "run.db"
    with Store.open(path) as store:
        other = sqlite3.connect(path)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process"):
            await store.append(make_call("c"))
        other.rollback()
        other.close()
        await store.append(make_call("c"))
        assert store.counts().calls == 1


@pytest.mark.parametrize("content", [b"this is no database, and long enough to be looked at" * 100])
def test_a_file_that_is_no_database_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.db"
    path.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        Store.open(path)
    assert path.read_bytes() == content


def test_a_missing_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="folder exists"):
        Store.open(tmp_path / "nowhere" / "run.db")


async def test_damaged_pages_are_a_clear_error(tmp_path: Path, make_call: Callable[..., Call]) -> None:
    path = tmp_path / "run.db"
    with Store.open(path) as store:
        for number in range(50):
            await store.append(make_call(f"c{number}", delta=list(range(2000))))
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"), Store.open(path) as store:
        store.calls("r")


def test_a_database_of_another_schema_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    Store.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = '99'")
    connection.close()
    with pytest.raises(StoreError, match="schema version 99"):
        Store.open(path)
