"""What a client and its node leave behind: nothing that only the interpreter's search for circles would find.

That search looks at everything there is, the more often the more is left to it: fifty objects of each transaction, once.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import aio


@pytest.fixture
def _uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def _transactions(path: Path, concurrency: aio.Concurrency) -> int:
    """How many objects some transactions leave to the collector."""
    async with await aio.open(path, partitions=16) as database:
        namespace = database.namespace("n")

        async def some(times: int) -> None:
            for at in range(times):
                async with database.transaction(concurrency=concurrency) as tx:
                    inside = tx.namespace(namespace)
                    await inside.get(b"read %d" % at)
                    await inside.put(b"one %d" % at, b"v")
                    await inside.put(b"other %d" % at, b"v")
                await namespace.put(b"alone %d" % at, b"v")

        await some(2)
        gc.collect()
        await some(10)
        return gc.collect()


@pytest.mark.parametrize("concurrency", list(aio.Concurrency))
@pytest.mark.usefixtures("_uncollected")
def test_a_transaction_leaves_no_circle_behind(tmp_path: Path, concurrency: aio.Concurrency) -> None:
    assert asyncio.run(_transactions(tmp_path, concurrency)) == 0
