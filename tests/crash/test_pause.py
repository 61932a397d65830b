"""A primary that is stopped for longer than every timeout, and goes on as if nothing had been: a zombie must not harm."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from random import Random

import pytest

from engine import aio
from engine.client.admin import ask
from engine.protocol.requests import Done, Failed, Get, Put, Remap, Reply, Values
from tests.crash.journal import Journal
from tests.crash.load import Load
from tests.crash.processes import SETTINGS, Cluster, eventually
from tests.crash.run import CLIENT_SECONDS, check_directories
from tests.support.raw_client import RawClient
from wal.ids import partition_of

PAUSE_SECONDS = 5.0
assert max(CLIENT_SECONDS, *(int(SETTINGS[name]) / 1000 for name in SETTINGS if name.endswith("_ms"))) < PAUSE_SECONDS

MARK = b"mark"


async def _story(cluster: Cluster, journal: Journal) -> None:
    await cluster.form()
    async with await aio.connect(cluster.addresses, timeout=CLIENT_SECONDS) as database:
        load = Load(database, journal, Random(7))
        await load.set_up()
        marks = database.namespace("marks")
        await marks.put(MARK, b"old")
        topology = database.session.router.topology
        assert topology is not None
        victim = topology.placements[partition_of(MARK, topology.partitions)].primary
        assert victim is not None
        others = [name for name in cluster.names if name != victim]
        zombie = await RawClient.connect(cluster.node(victim).address)
        load.begin()
        try:
            await asyncio.sleep(1.0)
            cluster.signal(victim, signal.SIGSTOP)
            # These reach its machine and wait there for a process that does not run.
            await zombie.send([Get(1, "marks", [MARK]), Put(2, bytes(16), "marks", [b"{mark}2"], [b"of the zombie"])])
            before = journal.answers["ok"]
            paused_at = asyncio.get_running_loop().time()
            await eventually(lambda: _members(cluster, others[0], 2), 30.0, "the others do not go on without it")
            await marks.put(MARK, b"new")
            await asyncio.sleep(paused_at + PAUSE_SECONDS - asyncio.get_running_loop().time())
            assert journal.answers["ok"] > before, "the load stood still"
            cluster.signal(victim, signal.SIGCONT)
            told = {reply.id: reply for reply in await zombie.replies(2)}
            _check_read(told[1])
            await cluster.healthy()
            load.check_alive()
            if isinstance(told[2], Done):
                assert await marks.get(b"{mark}2") == b"of the zombie", "a write that a zombie acknowledged is lost"
            await asyncio.sleep(1.0)
        finally:
            await load.stop()
        await zombie.close()
        assert await marks.get(MARK) == b"new"
        await load.read_everything()
        assert load.judge() == []
    await cluster.quiet()


async def _members(cluster: Cluster, name: str, wanted: int) -> list[str]:
    found = len((await ask(cluster.node(name).address, "status"))["members"])
    return [] if found == wanted else [f"{name} knows {found} members"]


def _check_read(reply: Reply) -> None:
    """A zombie may say that it is none to ask, or have learned better; it may not tell the past."""
    match reply:
        case Values(_, values):
            assert [value for _, _, value in values] == [b"new"], f"a stale read: {reply}"
        case _:
            assert isinstance(reply, Remap | Failed), f"unexpected answer: {reply}"


@pytest.mark.slow
@pytest.mark.processes
def test_a_primary_that_was_stopped_for_longer_than_every_timeout_does_no_harm(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal, Cluster(tmp_path, ["n1", "n2", "n3"]) as cluster:
        asyncio.run(_story(cluster, journal))
        for name in cluster.names:
            cluster.kill(name)
        check_directories([cluster.node(name).data for name in cluster.names])
