from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from openforge.sandbox import ProcessSandbox


@pytest_asyncio.fixture
async def sandbox() -> AsyncIterator[ProcessSandbox]:
    sandbox = ProcessSandbox()
    yield sandbox
    await sandbox.close()
