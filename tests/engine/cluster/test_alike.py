"""Nodes that are set to different things: it is said which, and no node comes and goes because of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from engine.client.admin import ask
from engine.cluster.alike import APART_MAX, Alike
from engine.host.server import Server, ServerConfig
from engine.protocol.habits import Habits
from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from engine.turn.core import Core
from engine.turn.events import PeerSeen
from engine.turn.settings import Durability, Settings
from tests.support.patience import PATIENCE_SECONDS

SETTINGS = Settings(
    cluster="alike",
    partitions=4,
    backups=2,
    heartbeat_ms=50,
    suspicion_ms=700,
    connection_lost_ms=300,
    exchange_delay_ms=50,
)


@pytest.mark.parametrize(
    ("mine", "other", "lose"),
    [
        (Habits("FSYNC", 250, 1_500), Habits("NONE", 250, 1_500), False),
        (Habits("FSYNC", 250, 1_500), Habits("FSYNC", 750, 5_000), False),
        (Habits("FSYNC", 250, 1_500), Habits("FSYNC", 751, 5_000), True),
        (Habits("FSYNC", 250, 1_500), Habits("FSYNC", 100, 499), True),
        (Habits("FSYNC", 250, 1_500), Habits(), False),
    ],
)
def test_two_nodes_lose_each_other_where_one_is_suspected_between_two_heartbeats(
    mine: Habits, other: Habits, *, lose: bool
) -> None:
    assert mine.lose_each_other(other) == other.lose_each_other(mine) == lose


class _Nodes:
    """Servers on loopback, and what each noted."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.servers: dict[str, Server] = {}
        self.notes: dict[str, list[str]] = {}

    async def start(self, name: str, settings: Settings = SETTINGS, chosen: frozenset[str] = frozenset()) -> Server:
        seeds = [server.address for server in self.servers.values()]
        config = ServerConfig(
            data=self.directory / name, listen="127.0.0.1:0", seeds=seeds, node=name, settings=settings, chosen=chosen
        )
        notes = self.notes.setdefault(name, [])
        server = self.servers[name] = await Server.start(config, note=notes.append)
        return server

    async def until(self, holds: Callable[[], bool | Awaitable[bool]], what: str) -> None:
        end = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while True:
            found = holds()
            if found if isinstance(found, bool) else await found:
                return
            assert asyncio.get_running_loop().time() < end, f"in vain waited for: {what}; {self.notes}"
            await asyncio.sleep(0.05)

    async def form(self, *names: str) -> None:
        first = self.servers[names[0]]
        others = set(names[1:])
        await self.until(lambda: others <= set(first.node.membership.joining.seen), "all are seen")
        await ask(first.address, "init", cluster=["c1"], nodes=list(names))
        await self.until(lambda: all(self.servers[n].node.core.serving for n in names), "all serve")

    async def status(self, name: str) -> dict[str, Any]:
        return await ask(self.servers[name].address, "status")


@asynccontextmanager
async def _nodes(directory: Path) -> AsyncIterator[_Nodes]:
    nodes = _Nodes(directory)
    try:
        yield nodes
    finally:
        for server in nodes.servers.values():
            await server.close()


def _run(directory: Path, story: Callable[[_Nodes], Awaitable[None]]) -> None:
    async def told() -> None:
        async with _nodes(directory) as nodes:
            await story(nodes)

    asyncio.run(told())


async def _another_durability(nodes: _Nodes) -> None:
    await nodes.start("n1")
    await nodes.start("n2", structs.replace(SETTINGS, durability=Durability.NONE))
    await nodes.form("n1", "n2")
    told = await nodes.status("n1")
    assert told["habits"] == {"durability": "FSYNC", "heartbeat_ms": 50, "suspicion_ms": 700}
    assert told["peers"]["n2"] == {"durability": "NONE", "heartbeat_ms": 50, "suspicion_ms": 700, "apart": False}
    assert any("n2 has durability NONE, this node FSYNC" in note for note in nodes.notes["n1"])
    assert any("n1 has durability FSYNC, this node NONE" in note for note in nodes.notes["n2"])


def test_a_node_with_another_durability_is_taken_and_named(tmp_path: Path) -> None:
    _run(tmp_path, _another_durability)


async def _rare_heartbeats(nodes: _Nodes) -> None:
    for name in ("n1", "n2"):
        await nodes.start(name)
    await nodes.form("n1", "n2")
    await nodes.start("n3", structs.replace(SETTINGS, heartbeat_ms=400, suspicion_ms=2_000))

    async def known() -> bool:
        told = [await nodes.status(name) for name in ("n1", "n2")]
        return all(status["peers"].get("n3", {}).get("apart") for status in told)

    await nodes.until(known, "n3 is known to be apart")
    version = nodes.servers["n1"].node.core.version
    told = await nodes.status("n3")
    assert not told["formed"]
    assert told["peers"]["n1"]["apart"]
    assert told["seen"] == []
    await asyncio.sleep(2.0)
    assert nodes.servers["n1"].node.core.version == version, "it was let in"
    said = [note for note in nodes.notes["n1"] if note.startswith("n3 is not heard")]
    assert len(said) == 1
    assert "it beats each 400 ms and suspects after 2000 ms, this one 50 and 700" in said[0]
    await nodes.servers.pop("n3").close()
    await nodes.start("n3")  # the same directory, as the others are set
    await nodes.until(lambda: nodes.servers["n3"].node.core.serving, "n3 is let in")
    assert not (await nodes.status("n1"))["peers"]["n3"]["apart"]
    await nodes.servers.pop("n3").close()  # and as a member
    await nodes.start("n3", structs.replace(SETTINGS, heartbeat_ms=400, suspicion_ms=2_000))

    def out() -> bool:
        topology = nodes.servers["n1"].node.core.topology
        return topology is not None and topology.member("n3") is None

    await nodes.until(out, "n3 is out of the map")
    await nodes.until(known, "n3 is known to be apart, again")


def test_a_node_that_beats_too_rarely_is_kept_out_and_told_why(tmp_path: Path) -> None:
    _run(tmp_path, _rare_heartbeats)


async def _other_partitions(nodes: _Nodes) -> None:
    await nodes.start("n1")
    await nodes.start("n2", structs.replace(SETTINGS, partitions=16, backups=1), frozenset(["partitions", "backups"]))
    await nodes.form("n1", "n2")
    assert (await nodes.status("n1"))["ignored"] == {}
    assert (await nodes.status("n2"))["ignored"] == {
        "partitions": {"here": 16, "map": 4},
        "backups": {"here": 1, "map": 2},
    }
    said = "partitions is 16 here, and 4 in cluster alike"
    await nodes.until(lambda: any(said in note for note in nodes.notes["n2"]), "n2 says so")
    assert sum(said in note for note in nodes.notes["n2"]) == 1
    assert not any("counts for nothing" in note for note in nodes.notes["n1"])


def test_what_the_map_has_fixed_otherwise_is_said_where_it_was_given(tmp_path: Path) -> None:
    _run(tmp_path, _other_partitions)


def test_of_lives_that_are_not_heard_the_last_are_remembered() -> None:
    replica = Replica(LayeredStore(MemoryStore()))
    alike = Alike(Core(SETTINGS, replica, node="n1", allocation="d1", incarnation=1, address="a", durable_lsn=0))
    for life in range(APART_MAX + 2):
        assert not alike.greeted(PeerSeen("n2", "d2", life, "n2:1", "", "", Habits("FSYNC", 9_000, 60_000)))
    assert ("n2", "d2", 1) not in alike.unheard
    assert ("n2", "d2", APART_MAX + 1) in alike.unheard
