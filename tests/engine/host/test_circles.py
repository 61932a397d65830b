"""A node makes no circles of what it keeps or drops, so that none need be looked for (`engine.turn.turns.collect_nothing`).

The nodes are in this process, and what clients do is done in another: those make circles.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import uvloop

from engine import aio
from engine.protocol.requests import Get, Lock, Put
from engine.turn.settings import Settings
from tests.support.directories import Nodes
from tests.support.patience import PATIENCE_SECONDS
from tests.support.raw_client import RawClient

SETTINGS = Settings(
    partitions=8, backups=2, lock_timeout_ms=100, lock_lease_ms=300, checkpoint_bytes=64 << 10, wal_segment_bytes=1 << 20
)
KEYS = [b"k%d" % n for n in range(40)]


# What clients do.


async def reads_and_writes(addresses: str) -> None:
    for _ in range(3):
        async with await aio.connect(addresses, timeout=PATIENCE_SECONDS) as database:
            rows = database.namespace("acc")
            await rows.put_many(dict.fromkeys(KEYS, bytes(4_000)))
            assert len(await rows.get_many(KEYS)) == len(KEYS)
            assert len([key async for key, _ in rows.scan(limit=5)]) == 5
            await rows.delete(KEYS[0])
            async with database.snapshot() as snapshot:
                assert await snapshot.namespace("acc").get(KEYS[1])


async def transactions(addresses: str) -> None:
    async def move(tx: aio.Transaction, one: bytes, other: bytes) -> None:
        rows = tx.namespace("acc")
        await rows.get(one)
        await rows.put(other, b"moved")

    async with await aio.connect(addresses, timeout=PATIENCE_SECONDS) as database:

        async def run(n: int) -> None:  # some give way to others, and run again
            await database.run(lambda tx: move(tx, KEYS[n % 3], KEYS[(n + 1) % 3]), attempts=100)

        await asyncio.gather(*(run(n) for n in range(12)))
        with suppress(ZeroDivisionError):
            async with database.transaction() as tx:
                await tx.namespace("acc").put(KEYS[5], b"given up")
                raise ZeroDivisionError


async def no_manners(addresses: str) -> None:
    for address in addresses.split(","):
        garbage = await RawClient.dial(address)
        garbage.writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert (await garbage.hello()).refused
        assert await garbage.hung_up()
        client = await RawClient.connect(address)
        await client.send([Get(1, "no such name!", KEYS[:3]), Put(2, bytes(16), "no such name!", KEYS[:1], [b"v"])])
        assert len(await client.replies(2)) == 2
        await client.send([Lock(3, bytes(range(16)), "acc", KEYS[:1], timeout_ms=50)])
        await client.close()


STORIES: dict[str, Callable[[str], Awaitable[None]]] = {
    story.__name__: story for story in (reads_and_writes, transactions, no_manners)
}


# The nodes.


@contextmanager
def no_circles() -> Iterator[None]:
    """Nothing that is dropped in here is held only by itself."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = [f"{type(one).__name__} {one!r:.200}" for one in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()
    assert found == []


def tell(directory: Path, story: Callable[[Nodes], Awaitable[None]]) -> None:
    """A story at three nodes, twice: the first time what is made once is made."""

    async def told() -> None:
        nodes = Nodes(directory, SETTINGS)
        try:
            await nodes.start()
            await story(nodes)
            with no_circles():
                await story(nodes)
                await nodes.settle()
        finally:
            await nodes.close()

    uvloop.run(told())


async def ask_as(name: str, nodes: Nodes) -> None:
    """Have clients of that kind at the nodes, in a process of their own."""
    addresses = ",".join(server.address for server in nodes.servers.values())
    command = [sys.executable, "-m", __name__, name, addresses]
    await asyncio.to_thread(subprocess.run, command, check=True, timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize("name", STORIES)
def test_what_clients_do_makes_none(tmp_path: Path, name: str) -> None:
    tell(tmp_path, lambda nodes: ask_as(name, nodes))


def test_a_node_that_ends_and_returns_makes_none_elsewhere(tmp_path: Path) -> None:
    ended = []  # it may leave what it likes: its process is over

    async def story(nodes: Nodes) -> None:
        await ask_as("reads_and_writes", nodes)
        ended.append(nodes.servers.pop("n3"))
        await ended[-1].close()
        await nodes.start(["n3"])

    tell(tmp_path, story)


def test_a_circle_would_be_seen() -> None:
    def make() -> None:
        circle: list[object] = []
        circle.append(circle)

    with pytest.raises(AssertionError, match="list"), no_circles():
        make()


if __name__ == "__main__":
    uvloop.run(STORIES[sys.argv[1]](sys.argv[2]))  # type: ignore[arg-type]  # each is a coroutine
