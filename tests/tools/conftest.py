"""Directories of a small cluster, for the commands that read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import aio
from tests.support.commands import HOSTILE
from tests.support.directories import build


@pytest.fixture(scope="session")
def left(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Copies of three nodes' directories, taken while they ran."""

    async def story(database: aio.Database) -> None:
        acc = database.namespace("acc")
        await acc.put_many({b"k%d" % at: b"value of k%d." % at for at in range(100)})
        await acc.delete(b"k7")
        await acc.put(HOSTILE, HOSTILE)
        async with database.transaction() as tx:
            await tx.namespace("acc").put(b"k1", b"of a transaction")
            await tx.namespace("bank").put(b"b1", b"of a transaction")
        await database.namespace("bank").put(b"b2", b"later")

    return build(tmp_path_factory.mktemp("wal"), story)


@pytest.fixture(scope="session")
def checkpointed(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Directories with a last checkpoint each."""

    async def story(database: aio.Database) -> None:
        await database.namespace("acc").put_many({b"k%d" % at: b"value of k%d." % at for at in range(400)})
        await database.namespace("acc").put_many({b"z%d" % at: b"" for at in range(100)})

    return build(tmp_path_factory.mktemp("stopped"), story, stop=True)
