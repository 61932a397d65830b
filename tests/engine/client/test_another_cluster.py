"""At an address of a client's cluster another one answers: nothing is asked of it, and whoever waits is told."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from pathlib import Path

import pytest

import engine
from engine import aio
from engine.client.admin import form
from engine.host.server import Server, ServerConfig
from engine.turn.settings import Settings
from tests.support.patience import PATIENCE_SECONDS

SETTINGS = Settings(partitions=8, backups=0)


async def started(directory: Path, listen: str = "127.0.0.1:0", *, forms: bool = True) -> Server:
    """A node that is its own cluster, or will be."""
    config = ServerConfig(data=directory, listen=listen, node="n1", seeds=[], settings=SETTINGS)
    server = await Server.start(config, note=lambda _: None)
    if forms:
        await form(server.address, ["n1"], seconds=PATIENCE_SECONDS)
    return server


@pytest.mark.parametrize("forms", [True, False])
def test_what_was_meant_for_one_cluster_is_not_done_by_another(tmp_path: Path, *, forms: bool) -> None:
    """As where a directory is thrown away, and the node started anew, while a client lives on; it may dial before or after
    the new cluster is formed."""

    async def story() -> None:
        first = await started(tmp_path / "first")
        async with await aio.connect(first.address, timeout=PATIENCE_SECONDS) as db:
            ns = db.namespace("ns", codec="str")
            await ns.put("k", "ours")
            await first.close()
            second = await started(tmp_path / "second", first.address, forms=forms)
            if not forms:
                for _ in range(50):
                    with pytest.raises(engine.Error):
                        await ns.get("k", timeout=0.01)
                await form(second.address, ["n1"], seconds=PATIENCE_SECONDS)
            says = r"no connection to n1 at [\d.:]+: the node there belongs to cluster id \w+, expected \w+"
            for call in (partial(ns.put, "k", "more"), partial(ns.get, "k")):
                while True:
                    with pytest.raises(engine.Error) as told:
                        await call(timeout=0.5)
                    assert told.type is engine.Unavailable
                    if re.search(says, str(told.value)):
                        break
            async with await aio.connect(second.address, timeout=PATIENCE_SECONDS) as theirs:
                assert [row async for row in theirs.namespace("ns", codec="str").scan()] == []
            await second.close()
            again = await started(tmp_path / "first", first.address, forms=False)
            assert await ns.get("k") == "ours", "it is there again"
            await again.close()

    asyncio.run(story())
