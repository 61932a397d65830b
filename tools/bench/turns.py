"""How long a node is deaf: the longest turn at the limits of what may be asked, and while a node with much comes back.

Times are of the processor, as the node itself counts them (`engine.turn.turns`), so that a busy disk does not show. A turn
above 50 ms is a defect: `foreshore node status` shows it too.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from engine import aio
from engine.aio import Concurrency
from engine.node.node import Node
from engine.turn.turns import TURN_MS_MAX, Turns, collect_nothing
from rebalance.ports import MS
from tools.bench.figures import VALUE_BYTES, Measured, Setting, count_is
from tools.local_cluster import LocalCluster, NodeProcess, until
from wal.ids import partition_of

PARTITIONS = 16_384
NAMESPACES = 256
LARGE = 16 << 20
VALUE = b"v" * VALUE_BYTES
KEYS_AT_ONCE = 10_000
LOADED_SECONDS = 600.0
RETURNED_SECONDS = 900.0


async def turns_at_limits(setting: Setting, figure: str) -> list[Measured]:
    """The longest turn of one node for each request, as large as a client makes it, in a process set up as a node's."""
    collect_nothing()
    try:
        return await _at_limits(setting, figure)
    finally:
        gc.enable()


Measure: TypeAlias = Callable[[str, int, Callable[[], Awaitable[object]]], Awaitable[None]]
"""Notes the longest turn of some work on so many keys."""


async def _at_limits(setting: Setting, figure: str) -> list[Measured]:
    found: list[Measured] = []
    options: dict[str, Any] = {"partitions": PARTITIONS, "checkpoint_ms": 86_400_000, "checkpoint_bytes": 1 << 36}
    async with await aio.open(setting.directory / figure, **options) as database:
        node = _node_of(database)

        async def measure(what: str, count: int, work: Callable[[], Awaitable[object]]) -> None:
            node.turns = Turns()
            began = time.perf_counter()
            await work()
            seconds = time.perf_counter() - began
            await asyncio.sleep(0.3)  # what follows by itself
            found.append(
                Measured(
                    figure=figure,
                    what=f"longest turn, {PARTITIONS:,} partitions: {what}: {node.turns.longest_took}",
                    value=round(node.turns.longest / MS, 1),
                    unit="ms",
                    goal=float(TURN_MS_MAX),
                    at_most=True,
                    counted=count,
                    seconds=round(seconds, 3),
                    parts={"turns above": node.turns.above, "of": node.turns.taken},
                )
            )
            setting.say(f"{figure}: {what}")

        for keys in (10_000, 100_000):
            await _of_many_keys(database, keys, measure)
        await _of_all(database, measure)
        await _of_one_partition(database, measure)
        await measure("a checkpoint of all that changed", 2 * PARTITIONS, lambda: _checkpoint(database, node))
    return found


async def _checkpoint(database: aio.Database, node: Node) -> None:
    node.checkpoint_wanted = True
    await database.namespace("n").put(b"k", VALUE)
    while node.checkpoint_wanted or node.checkpointing:
        await asyncio.sleep(0.05)


async def _of_many_keys(database: aio.Database, keys: int, measure: Measure) -> None:
    """Requests and transactions of so many keys."""
    namespace = database.namespace("n")
    items = {b"%d-%d" % (keys, at): VALUE for at in range(keys)}

    def put_all() -> Awaitable[object]:
        return namespace.put_many(items)

    def get_all() -> Awaitable[object]:
        return namespace.get_many(list(items))

    async def write_all(mode: Concurrency) -> None:
        async with database.transaction(concurrency=mode, timeout=300, lock_timeout=60) as transaction:
            await transaction.namespace(namespace).put_many(items)

    async def read_all() -> None:
        async with database.transaction(timeout=300, lock_timeout=60) as transaction:
            await transaction.namespace(namespace).get_many(list(items))

    await measure(f"put_many of {keys:,} keys", keys, put_all)
    await measure(f"get_many of {keys:,} keys", keys, get_all)
    await measure(f"a transaction that reads {keys:,} keys", keys, read_all)
    if keys <= KEYS_AT_ONCE:  # each record of a transaction names all of its partitions
        await measure(f"a transaction that writes {keys:,} keys", keys, lambda: write_all(Concurrency.PESSIMISTIC))
        await measure(f"an optimistic one of {keys:,} keys", keys, lambda: write_all(Concurrency.OPTIMISTIC))


async def _of_one_partition(database: aio.Database, measure: Measure) -> None:
    """As many keys of one partition as a batch or a transaction may have."""
    namespace, keys = database.namespace("n"), 100_000
    items = {b"{one}%d" % at: VALUE for at in range(keys)}

    async def overwrite_beside_a_snapshot() -> None:
        async with database.snapshot() as snapshot:
            await snapshot.namespace(namespace).get(b"{one}0")
            await namespace.put_many(items)

    async def write_all(mode: Concurrency) -> None:
        async with database.transaction(concurrency=mode, timeout=300, lock_timeout=60) as transaction:
            await transaction.namespace(namespace).put_many(items)

    async def wait_for_one() -> None:
        async with database.transaction() as transaction:
            await transaction.namespace(namespace).put(b"{one}0", VALUE)
            waiting = asyncio.ensure_future(namespace.put_many(items))
            await asyncio.sleep(0.5)
        await waiting

    of_one = f"{keys:,} keys of one partition"
    await measure(f"put_many of {of_one}", keys, lambda: namespace.put_many(items))
    await measure(f"put_many of {of_one}, read by a snapshot", keys, overwrite_beside_a_snapshot)
    await measure(f"put_many of {of_one}, which expire", keys, lambda: namespace.put_many(items, ttl=3_600))
    await measure(f"put_many of {of_one}, which waits for a transaction", keys, wait_for_one)
    await measure(f"a transaction that writes {of_one}", keys, lambda: write_all(Concurrency.PESSIMISTIC))
    await measure(f"an optimistic one of {of_one}", keys, lambda: write_all(Concurrency.OPTIMISTIC))


async def _of_all(database: aio.Database, measure: Measure) -> None:
    """Many namespaces, and walks over what is there and what is not."""
    namespace = database.namespace("n")

    async def in_every_namespace() -> None:
        for number in range(1, NAMESPACES):
            await database.namespace(f"n{number}").put(b"k", VALUE)

    async def deletes() -> None:
        await namespace.delete_many([b"100000-%d" % at for at in range(100_000)])

    async def scan_one() -> None:
        async for _ in namespace.scan(start=b"100000", limit=1):
            break

    async def scan_all() -> None:
        async for _ in namespace.scan():
            pass

    await measure(f"{NAMESPACES} namespaces", NAMESPACES, in_every_namespace)
    await measure("delete_many of 100,000 keys", 100_000, deletes)
    await measure("scan(limit=1) behind 100,000 deleted keys", 1, scan_one)
    await measure("a scan of all", 10_000, scan_all)
    await measure("a value of 16 MiB", 1, lambda: namespace.put(b"large", bytes(LARGE)))


def _node_of(database: aio.Database) -> Node:
    """The node in this process, whose turns its driver notes."""
    inside: Any = database.session.links
    node: Node = inside.driver.node
    return node


async def node_returns(setting: Setting, figure: str, partitions: int, namespaces: int) -> list[Measured]:
    """A node of three is killed, misses an update of every fragment, and comes back: who is evicted meanwhile."""
    directory = setting.directory / figure
    directory.mkdir()
    with LocalCluster(directory, ["--partitions", str(partitions)]) as cluster:
        setting.say(f"{figure}: three nodes, {partitions:,} partitions, {namespaces:,} namespaces")
        await cluster.form(["n1", "n2", "n3"])
        async with await aio.connect(cluster.addresses, timeout=120) as database:
            names = [database.namespace(f"ns{number}") for number in range(namespaces)]
            await _load(setting, figure, names, partitions, b"before")
            before = await _major(cluster)
            cluster.nodes["n3"].kill()
            await until(lambda: _goes_on(cluster), LOADED_SECONDS, "the two that are left did not go on")
            gone = await _major(cluster)
            await _load(setting, figure, names, partitions, b"after")
            began = time.perf_counter()
            await cluster.start("n3").ready()
            await until(lambda: cluster.healthy(3), RETURNED_SECONDS, "the node that came back is not whole")
            seconds = time.perf_counter() - began
            evictions = await _major(cluster) - gone - 1
            turns = {name: await _turns(cluster, node) for name, node in cluster.nodes.items()}
            rows = 0
            for name in names[: max(1, 16_384 // partitions)]:
                rows += len(await name.get_many(list(key_of_each(partitions).values())))
    count_is("rows", partitions * min(namespaces, max(1, 16_384 // partitions)), rows)
    parts = {f"longest turn of {name} ms": found["longest_ms"] for name, found in turns.items()}
    parts |= {f"above of {name}": found["above"] for name, found in turns.items()}
    return [
        Measured(
            figure=figure,
            what=f"evictions while a node returns to {partitions:,} partitions of {namespaces:,} namespaces",
            value=float(evictions),
            unit="evictions",
            goal=0.0,
            at_most=True,
            counted=partitions * namespaces,
            seconds=round(seconds, 1),
            parts=parts | {"versions before it was killed": float(before)},
        )
    ]


async def _load(
    setting: Setting, figure: str, names: list[aio.Namespace[bytes, bytes]], partitions: int, value: bytes
) -> None:
    keys = list(key_of_each(partitions).values())
    for at, name in enumerate(names):
        await name.put_many(dict.fromkeys(keys, value))
        if not at % 10:
            setting.say(f"{figure}: {value.decode()}, namespace {at + 1} of {len(names)}")


def key_of_each(partitions: int) -> dict[int, bytes]:
    """A key of every partition."""
    found: dict[int, bytes] = {}
    number = 0
    while len(found) < partitions:
        key = b"k%d" % number
        found.setdefault(partition_of(key, partitions), key)
        number += 1
    return found


async def _goes_on(cluster: LocalCluster) -> bool:
    """Whether those that run are the members, and serve all that they are primary of."""
    found = [await cluster.status(node) for node in cluster.running]
    return all(len(status["members"]) == len(found) and not status["partitions"].get("PROMOTING") for status in found)


async def _major(cluster: LocalCluster) -> int:
    """How often members came or went."""
    version = str((await cluster.status())["version"])
    return int(version.partition(".")[0])


async def _turns(cluster: LocalCluster, node: NodeProcess) -> dict[str, float]:
    found: dict[str, float] = (await cluster.status(node))["turns"]
    return found
