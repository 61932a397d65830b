"""The figures of a cluster: three node processes on loopback, each with a directory of its own, and the load beside them.

All of it is as a user gets it: default settings, durability FSYNC, two synchronous backups, clients over sockets. The
load generator is this process; its tasks share one connection per node, as an application's do.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from engine import aio
from engine.client.admin import ask
from tools.bench.figures import VALUE_BYTES, Measured, Setting, count_is, per_second
from tools.demo import flights
from tools.demo.load import Load
from tools.local_cluster import LocalCluster, NodeProcess
from wal.ids import partition_of

NODES = ("n1", "n2", "n3")
NAMESPACE = "bench"
WARM_UP = 0.2
"""The part of the measured time that goes before it, uncounted in the rate."""
PATIENCE_SECONDS = 120.0

QUEUED_PER_SECOND = 2_500
"""So many jobs lie in the queue for each second that is measured: more than are to be done in one."""

Rate = tuple[float, float]
"""So many a second, at so much processor time of the nodes each, in us."""
Operation = Callable[[aio.Namespace[bytes, bytes], int], Awaitable[None]]
"""Does the operation with a number of its own."""


@asynccontextmanager
async def three_nodes(
    setting: Setting, figure: str, options: Sequence[str] = (), names: Sequence[str] = NODES
) -> AsyncIterator[tuple[LocalCluster, aio.Database]]:
    """A new cluster, of three nodes unless others are named, and a client of it; both are gone afterwards."""
    directory = setting.directory / figure
    directory.mkdir()
    with LocalCluster(directory, options) as cluster:
        setting.say(f"{figure}: {', '.join(names)} form a cluster")
        await cluster.form(names)
        async with await aio.connect(cluster.addresses) as database:
            yield cluster, database


async def puts(setting: Setting, figure: str, clients: int, goal: float) -> list[Measured]:
    """Single-key puts of new keys."""
    value = b"v" * VALUE_BYTES

    async def put(namespace: aio.Namespace[bytes, bytes], number: int) -> None:
        await namespace.put(b"key-%08d" % number, value)

    what = f"durable replicated single-key puts, {clients:,} clients"
    return [await rate(setting, figure, clients, put, updates=1, what=what, unit="puts/s", goal=goal)]


async def transactions(setting: Setting, figure: str, clients: int, goal: float) -> list[Measured]:
    """Transactions of two new keys in two partitions."""
    value = b"v" * VALUE_BYTES

    async def transact(namespace: aio.Namespace[bytes, bytes], number: int) -> None:
        one, other = two_partitions(namespace.database, number)
        async with namespace.database.transaction() as tx:
            inside = tx.namespace(namespace)
            await inside.put(one, value)
            await inside.put(other, value)

    what = f"two-partition transactions, {clients:,} clients"
    return [await rate(setting, figure, clients, transact, updates=2, what=what, unit="tx/s", goal=goal)]


async def reads_of_one(setting: Setting, figure: str, clients: int, goal: float) -> list[Measured]:
    """Transactions that only read one key, which is the same for all, beside such that read a key each."""
    async with three_nodes(setting, figure) as (cluster, database):
        namespace = database.namespace(NAMESPACE)
        await namespace.put_many({b"key-%d" % number: b"v" for number in range(clients)})
        rates: dict[str, list[Rate]] = {"apart": [], "one": []}
        reads = 0
        for _ in range(2):  # turn about, since the machine has moods
            for which, found in rates.items():

                async def read(namespace: aio.Namespace[bytes, bytes], number: int, which: str = which) -> None:
                    async with namespace.database.transaction() as tx:
                        await tx.namespace(namespace).get(b"key-%d" % (number % clients if which == "apart" else 0))

                setting.say(f"{figure}: {clients} clients, {which}")
                before, began = processor_seconds(cluster), time.perf_counter()
                done = await _drive(namespace, clients, read, setting.seconds / 2)
                reads, seconds = reads + done, time.perf_counter() - began
                found.append((per_second(done, seconds), 1e6 * (processor_seconds(cluster) - before) / done))
        (apart, apart_us), (one, one_us) = (
            (sum(rate for rate, _ in found) / len(found), sum(us for _, us in found) / len(found))
            for found in rates.values()
        )
        parts = {"keys apart, tx/s": round(apart, 1), "one key, tx/s": round(one, 1)}
        parts |= {"node processor us each, apart": round(apart_us, 1), "one": round(one_us, 1)}
        what = f"transactions that read one common key, as a part of those that read keys apart, {clients} clients"
        return [
            Measured(
                figure=figure,
                what=what,
                value=round(one / apart, 3),
                unit="of apart",
                goal=goal,
                counted=reads,
                seconds=2 * setting.seconds,
                parts=parts,
            )
        ]


async def counter(setting: Setting, figure: str, clients: int, goal: float) -> list[Measured]:
    """One number that all clients increment, each of whom is told another sum."""
    told: dict[int, None] = {}

    async def count(namespace: aio.Namespace[bytes, bytes], _: int) -> None:
        told[await namespace.database.namespace(NAMESPACE, codec=int).increment("counter")] = None

    what = f"increments of one key, {clients:,} clients"
    found = await rate(setting, figure, clients, count, updates=1, what=what, unit="increments/s", goal=goal)
    count_is("sums that were told, each once", len(told), found.counted)
    return [found]


async def crossing(setting: Setting, figure: str, clients: int, keys: int, goal: float) -> list[Measured]:
    """Transactions that move something between two of a few keys, in whatever order; what there is stays the same."""
    async with three_nodes(setting, figure) as (cluster, database):
        namespace = database.namespace(NAMESPACE, codec=int)
        names = [f"key-{number}" for number in range(keys)]
        await namespace.put_many(dict.fromkeys(names, 0))
        attempts, longest, pairs = itertools.count(), 0.0, list(itertools.permutations(names, 2))

        async def cross(_: aio.Namespace[bytes, bytes], number: int) -> None:
            nonlocal longest
            source, target = pairs[17 * number % len(pairs)]

            async def move(tx: aio.Transaction) -> None:
                next(attempts)
                inside = tx.namespace(namespace)
                for name, more in ((source, -1), (target, 1)):
                    await inside.put(name, (await inside.get_for_update(name, 0)) + more)

            began = time.perf_counter()
            await database.run(move, attempts=1_000, lock_timeout=60.0, timeout=60.0)
            longest = max(longest, time.perf_counter() - began)

        setting.say(f"{figure}: {clients} clients, {keys} keys")
        spent, began = _Spent(cluster), time.perf_counter()
        done = await _drive(database.namespace(NAMESPACE), clients, cross, setting.seconds)
        seconds, each = time.perf_counter() - began, spent.each(done)
        count_is("the sum over all keys", sum([await namespace.get(name, 0) for name in names]), 0)
        parts = {"attempts each": round(next(attempts) / done, 2), "longest s": round(longest, 2), **each}
        what = f"transactions of two of {keys} keys in any order, {clients} clients"
        return [
            Measured(
                figure=figure,
                what=what,
                value=per_second(done, seconds),
                unit="tx/s",
                goal=goal,
                counted=done,
                seconds=round(seconds, 3),
                parts=parts,
            )
        ]


async def queue(setting: Setting, figure: str, clients: int, goal: float) -> list[Measured]:
    """Jobs that are claimed, moved and finished, each in two transactions; the rate of the last half beside the first's."""
    async with three_nodes(setting, figure) as (cluster, database):
        waiting, claimed = database.namespace("waiting"), database.namespace("claimed")
        jobs = max(clients * 4, int(setting.seconds * QUEUED_PER_SECOND))
        await waiting.put_many({b"job-%08d" % number: b"v" for number in range(jobs)})

        async def claim(tx: aio.Transaction) -> bytes | None:
            async for key, job in tx.namespace(waiting).scan(limit=1, skip_locked=True):
                await tx.namespace(waiting).delete(key)
                await tx.namespace(claimed).put(key, job)
                return key
            return None

        ended: list[float] = []

        async def work(_: aio.Namespace[bytes, bytes], number: int) -> None:
            key = await database.run(claim, attempts=100)
            if key is None:
                await asyncio.sleep(0.01)
                return

            async def finish(tx: aio.Transaction) -> None:
                await tx.namespace(claimed).delete(key)

            await database.run(finish, attempts=100)
            ended.append(time.perf_counter())

        setting.say(f"{figure}: {clients} workers, {jobs} jobs")
        spent, began = _Spent(cluster), time.perf_counter()
        await _drive(waiting, clients, work, setting.seconds)
        each = spent.each(len(ended))
        left = sum([1 async for _ in waiting.scan()]) + sum([1 async for _ in claimed.scan()])
        count_is("jobs that are done or left", len(ended) + left, jobs)
        half = len(ended) // 2
        first, last = per_second(half, ended[half] - began), per_second(len(ended) - half, ended[-1] - ended[half])
        parts = {"first half, jobs/s": first, "last half, jobs/s": last, **each}
        rate = per_second(len(ended), ended[-1] - began)
        what = f"jobs claimed, moved and finished, {clients} workers"
        return [
            Measured(
                figure=figure,
                what=what,
                value=rate,
                unit="jobs/s",
                goal=goal,
                counted=len(ended),
                seconds=round(ended[-1] - began, 3),
                parts=parts,
            )
        ]


def two_partitions(database: aio.Database, number: int) -> tuple[bytes, bytes]:
    """Two keys of this number, in two partitions."""
    topology = database.session.router.topology
    assert topology is not None, "a connected client has the table"
    one, count = b"one-%08d" % number, topology.partitions
    at = partition_of(one, count)
    others = (b"other-%08d-%d" % (number, n) for n in itertools.count())
    return one, next(other for other in others if partition_of(other, count) != at)


async def rate(
    setting: Setting,
    figure: str,
    clients: int,
    operation: Operation,
    *,
    updates: int,
    what: str,
    unit: str,
    goal: float,
    before: Callable[[aio.Database], Awaitable[None]] | None = None,
) -> Measured:
    """Run an operation from so many tasks for the time; each makes `updates` updates, which the nodes must count.

    `before` is done to the database first. `parts` of the figure are processor times of nodes and client, in us each.
    """
    async with three_nodes(setting, figure) as (cluster, database):
        if before is not None:
            await before(database)
        setting.say(f"{figure}: {clients:,} clients for {setting.seconds:g} s")
        done = await _drive(database.namespace(NAMESPACE), clients, operation, setting.seconds * WARM_UP)
        spent, began = _Spent(cluster), time.perf_counter()
        found = await _drive(database.namespace(NAMESPACE), clients, operation, setting.seconds, first=done)
        seconds, each = time.perf_counter() - began, spent.each(found)
        await counted(cluster, updates * (done + found))
        return Measured(
            figure=figure,
            what=what,
            value=per_second(found, seconds),
            unit=unit,
            goal=goal,
            counted=done + found,
            seconds=round(seconds, 3),
            parts=each,
        )


async def _drive(
    namespace: aio.Namespace[bytes, bytes], clients: int, operation: Operation, seconds: float, first: int = 0
) -> int:
    """Operations of each client until the time is over, but one at least; how many were acknowledged."""
    numbers, end = itertools.count(first), time.perf_counter() + seconds
    acknowledged = 0

    async def client() -> None:
        nonlocal acknowledged
        while True:
            await operation(namespace, next(numbers))
            acknowledged += 1
            if time.perf_counter() >= end:
                return

    async with asyncio.TaskGroup() as tasks:
        for _ in range(clients):
            tasks.create_task(client())
    return acknowledged


async def counted(cluster: LocalCluster, updates: int) -> None:
    """Every node's copies come to count exactly what was acknowledged. Raises Miscounted."""

    async def lwms(node: NodeProcess) -> int:
        counters = await ask(node.address, "counters", namespace=[NAMESPACE])
        return sum(int(fragment["lwm"]) for fragment in counters.values())

    for node in cluster.running:
        patience = time.monotonic() + PATIENCE_SECONDS
        while (found := await lwms(node)) < updates and time.monotonic() < patience:
            await asyncio.sleep(0.1)
        count_is(f"updates on {node.name}", updates, found)


class _Spent:
    """What nodes and client have of the processor from now on."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._nodes, self._own = processor_seconds(cluster), time.process_time()

    def each(self, operations: int) -> dict[str, float]:
        """For each of so many operations, in us."""
        nodes, own = processor_seconds(self._cluster) - self._nodes, time.process_time() - self._own
        return {"node processor us each": round(1e6 * nodes / operations, 1), "client's": round(1e6 * own / operations, 1)}


def processor_seconds(cluster: LocalCluster) -> float:
    """What all nodes have had of the processor."""
    return sum(node.cpu_seconds() for node in cluster.running)


async def year(setting: Setting, figure: str, keys_goal: float, memory_goal: float) -> list[Measured]:
    """The demo's load, undisturbed, and what a node's memory is afterwards."""
    setting.say(f"{figure}: reading the flights of the year")
    file = flights.data_file("flights.csv.zip")
    hours = flights.hours_of(flights.read_departures(file))
    hours = hours[: setting.hours] if setting.hours else hours
    async with three_nodes(setting, figure) as (cluster, database):
        load = Load(database, hours, setting.directory / figure / "acknowledged.jsonl")
        setting.say(f"{figure}: {load.total:,} hours, a transaction each")
        await load.run()
        seconds = load.seconds
        keys = sum(entry.keys for entry in load.acknowledged)
        count_is("transactions of the load", len(hours), load.done)
        spaces = flights.TOTALS
        rows = [row async for row in database.namespace(flights.FLIGHTS).scan()]
        totals = [row for space in spaces for row in [r async for r in database.namespace(space).scan()]]
        count_is("flights", sum(len(hour.flights) for hour in hours), len(rows))
        count_is("totals", len({(s, key) for hour in hours for s in spaces for key in hour.adds[s]}), len(totals))
        memory = {node.name: memory_of(node.pid) for node in cluster.running}
    worst = max(memory.values(), key=lambda parts: sum(parts.values()))
    return [
        Measured(
            figure=figure,
            what="keys in the demo's load: a hundred keys in four partitions per transaction",
            value=per_second(keys, seconds),
            unit="keys/s",
            goal=keys_goal,
            counted=keys,
            seconds=round(seconds, 3),
        ),
        Measured(
            figure="memory",
            what=f"resident memory of a node with {len(rows):,} flights loaded, the largest of {len(memory)}",
            value=round(sum(worst.values()) / (1 << 20), 1),
            unit="MB",
            goal=memory_goal,
            at_most=True,
            counted=len(rows) + len(totals),
            seconds=round(seconds, 3),
            parts={f"{name} MB": round(part / (1 << 20), 1) for name, part in worst.items()},
        ),
    ]


def memory_of(pid: int | str) -> dict[str, int]:
    """What a process has in memory, in bytes: its own, LMDB's mapped pages, and the files of its programs.

    LMDB's pages are the kernel's page cache, mapped: they are counted, and given up when memory is short.
    """
    parts = {"own": 0, "LMDB's pages": 0, "programs": 0}
    kind = "own"
    for kind_of, kilobytes in _mappings(Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8", errors="replace")):
        kind = kind_of
        parts[kind] += kilobytes << 10
    return parts


def _mappings(smaps: str) -> Iterator[tuple[str, int]]:
    """(what it is, resident kB) of each mapping."""
    kind = "own"
    for line in smaps.splitlines():
        word, *rest = line.split(maxsplit=5)
        if not word.endswith(":"):
            path = rest[4] if len(rest) > 4 else ""
            kind = "LMDB's pages" if path.endswith("/data.mdb") else "programs" if path.startswith("/") else "own"
        elif word == "Rss:":
            yield kind, int(rest[0])
