"""How fast an empty node gets everything, how a node is replaced beside a load, and what one that returns is spared."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from engine import aio
from engine.client.admin import ask
from engine.errors import Error
from tools.bench.cluster import NAMESPACE, counted, memory_of, processor_seconds, three_nodes
from tools.bench.figures import VALUE_BYTES, Measured, Setting, per_second, percentile
from tools.local_cluster import LocalCluster, NodeProcess, until

PUT_AT_ONCE = 1_000
LARGE_BYTES = 10_000
LARGE_LESS, SMALL_MORE = 10, 4
"""So many times fewer rows where they are large, and more where they are small: it is to be the rows that take time, not
the steps by which a node comes to be sent any, some 0.4 s."""
PATIENCE_SECONDS = 600.0
HANDOVER_STOP_MS = 50.0
UNCHANGED_TIMES = 250.0
DIFFERENTIAL_TIMES = 4.0
"""How much sooner than an empty node one is whole again that missed nothing, or a tenth whose history is gone."""
WRITERS = 64
CHECKPOINTS_SECONDS = 3.0
"""A few checkpoints, which trim the log."""


@asynccontextmanager
async def one_node(
    setting: Setting, figure: str, options: Sequence[str] = ()
) -> AsyncIterator[tuple[LocalCluster, aio.Database]]:
    """A cluster of one, with a client; another may be put beside it."""
    directory = setting.directory / figure
    directory.mkdir()
    with LocalCluster(directory, ["--backups", "1", *options]) as cluster:
        await cluster.form(["n1"])
        async with await aio.connect(cluster.addresses, timeout=120) as database:
            yield cluster, database


async def fill(namespace: aio.Namespace[bytes, bytes], rows: int, value: bytes) -> None:
    """Put so many rows, as many at once as make a batch of a few MB."""
    at_once = max(1, min(PUT_AT_ONCE, (4 << 20) // len(value)))
    for first in range(0, rows, at_once):
        await namespace.put_many({b"key-%09d" % n: value for n in range(first, min(rows, first + at_once))})


async def full_transfer(setting: Setting, figure: str, size: int, goal: float) -> list[Measured]:
    """Rows of `size` bytes, from the node that has them all to an empty one; the goal is in rows, or in MB where large."""
    large = size >= LARGE_BYTES
    rows = max(1, setting.updates // LARGE_LESS) if large else SMALL_MORE * setting.updates
    async with one_node(setting, figure) as (cluster, database):
        setting.say(f"{figure}: {rows:,} rows of {size:,} bytes")
        await fill(database.namespace(NAMESPACE), rows, b"v" * size)
        source, node = cluster.nodes["n1"], cluster.start("n2")
        await node.ready()
        await until(lambda: is_member(cluster, "n2"), PATIENCE_SECONDS, "the new node was not let in")
        setting.say(f"{figure}: an empty node is to have them, too")
        before = [memory_of(n.pid)["own"] for n in (source, node)]
        spent, began = [source.cpu_seconds(), node.cpu_seconds()], time.perf_counter()
        await ask(source.address, "baseline", nodes=["n1", "n2"])
        most = list(before)

        async def whole() -> bool:
            for at, process in enumerate((source, node)):
                most[at] = max(most[at], memory_of(process.pid)["own"])
            return await holds_all(cluster, node)

        await until(whole, PATIENCE_SECONDS, "the new node did not get everything")
        seconds = time.perf_counter() - began
        spent = [source.cpu_seconds() - spent[0], node.cpu_seconds() - spent[1]]
        await counted(cluster, rows)
    return [
        Measured(
            figure=figure,
            what=f"full transfer of {rows:,} values of {size:,} bytes into an empty node",
            value=per_second(rows * size // 1_000_000 if large else rows, seconds),
            unit="MB/s" if large else "rows/s",
            goal=goal,
            counted=rows,
            seconds=round(seconds, 3),
            parts={
                "supplier's processor us a row": round(1e6 * spent[0] / rows, 1),
                "demander's": round(1e6 * spent[1] / rows, 1),
                "supplier's memory rose by MB": round((most[0] - before[0]) / 1e6, 1),
                "demander's MB": round((most[1] - before[1]) / 1e6, 1),
            },
        )
    ]


async def replaced(setting: Setting, figure: str, goal: float) -> list[Measured]:
    """One of three nodes leaves in good order, and an empty one takes its place, beside 64 clients."""
    rows = setting.updates
    async with three_nodes(setting, figure) as (cluster, database):
        setting.say(f"{figure}: {rows:,} rows in two namespaces")
        for namespace in (NAMESPACE, "other"):
            await fill(database.namespace(namespace), rows // 2, b"v" * VALUE_BYTES)
        waits, stop = list[tuple[float, float]](), asyncio.Event()
        loading = asyncio.create_task(load_beside(database, waits, stop))
        try:
            await asyncio.sleep(setting.seconds / 5)
            calm, before = len(waits), await maps_of(cluster, "n1")
            began = time.perf_counter()
            await stop_in_order(cluster, "n3")
            node, _ = await becomes_whole(cluster, "n4")
            seconds = time.perf_counter() - began
            after = await maps_of(cluster, "n1")
            handovers = await _handovers(cluster, figure, "n4")
        finally:
            stop.set()
            await loading
        progress = await ask(node.address, "progress")
    beside = [(asked, answered) for asked, answered in waits[calm:] if asked < began + seconds]
    each = Counter(int(answered - began) for _, answered in beside)
    worst = min(each[at] for at in range(max(1, int(seconds))))
    return [
        Measured(
            figure=figure,
            what=f"maps, full and light, until a node of three is replaced, {rows:,} rows beside {WRITERS} clients",
            value=float(sum(after[kind] - before[kind] for kind in ("full", "light"))),
            unit="maps",
            goal=goal,
            at_most=True,
            counted=progress["rows"].get("full", 0),
            seconds=round(seconds, 3),
            parts={
                "full": after["full"] - before["full"],
                "stopped ms": round(after["stopped_ms"] - before["stopped_ms"], 1),
                "longest stop ms": after["longest_stop_ms"],
                "p99 of a put ms": round(1000 * percentile([b - a for a, b in beside], 0.99), 1),
                "longest put ms": round(1000 * max(b - a for a, b in beside), 1),
                "worst second %": round(100 * worst * setting.seconds / 5 / max(1, calm)),
            },
        ),
        handovers,
    ]


async def _handovers(cluster: LocalCluster, figure: str, name: str) -> Measured:
    """What the handovers stopped by which a node comes to lead its share: at most, by the slowest node on either side."""
    began = time.perf_counter()
    await until(lambda: leads_its_share(cluster, name), PATIENCE_SECONDS, f"no primaries moved to {name}")
    moved = [await maps_of(cluster, n.name) for n in cluster.running]
    stops = {
        at: sum(max(maps[f"{side}_over_p{at}_ms"] for maps in moved) for side in ("handed", "taken")) for at in (50, 99)
    }
    return Measured(
        figure=f"{figure}-handovers",
        what=f"longest that a partition stops, p99, while primaries move to a node beside {WRITERS} clients",
        value=round(stops[99], 1),
        unit="ms",
        goal=HANDOVER_STOP_MS,
        at_most=True,
        counted=int(sum(maps["handed_over"] for maps in moved)),
        seconds=round(time.perf_counter() - began, 3),
        parts={"p50 ms": round(stops[50], 1)},
    )


async def stop_in_order(cluster: LocalCluster, name: str) -> None:
    """A node leaves in good order."""
    await ask(cluster.nodes[name].address, "stop")
    if not await cluster.nodes[name].ended(PATIENCE_SECONDS):
        raise Error(f"{name} was asked to leave and did not; its log says:\n{cluster.nodes[name].last_words()}")


async def becomes_whole(cluster: LocalCluster, name: str) -> tuple[NodeProcess, float]:
    """A node comes, or comes back, and is one of those that hold data; how long it took after its start to have all."""
    node = cluster.start(name)
    await node.ready()
    began = time.perf_counter()
    await until(lambda: is_member(cluster, name), PATIENCE_SECONDS, f"{name} was not let in")
    names = [n.name for n in cluster.running]
    if (await cluster.status())["baseline"] != names:
        await ask(cluster.running[0].address, "baseline", nodes=names)

    async def whole() -> bool:
        return await holds_all(cluster, node) and await cluster.healthy(len(names))

    await until(whole, PATIENCE_SECONDS, f"{name} did not get everything")
    return node, time.perf_counter() - began


async def load_beside(database: aio.Database, waits: list[tuple[float, float]], stop: asyncio.Event) -> None:
    """Puts of new keys from so many clients, and when each was asked and answered."""
    puts, namespace = itertools.count(), database.namespace(NAMESPACE)

    async def client() -> None:
        while not stop.is_set():
            asked = time.perf_counter()
            await namespace.put(b"beside-%09d" % next(puts), b"v" * VALUE_BYTES)
            waits.append((asked, time.perf_counter()))

    async with asyncio.TaskGroup() as clients:
        for _ in range(WRITERS):
            clients.create_task(client())


async def maps_of(cluster: LocalCluster, name: str) -> dict[str, float]:
    """What a node says of the maps that it has taken in this life."""
    found: dict[str, float] = (await cluster.status(cluster.nodes[name]))["maps"]
    return found


async def returned(setting: Setting, figure: str, goal: float) -> list[Measured]:
    """A node is away while nothing, or a tenth, is changed, and comes back; against an empty one in its place."""
    rows = setting.updates
    async with three_nodes(setting, figure) as (cluster, database):
        setting.say(f"{figure}: {rows:,} rows")
        namespace = database.namespace(NAMESPACE)
        await fill(namespace, rows, b"v" * VALUE_BYTES)
        took, moved, spent = dict[str, float](), dict[str, int](), dict[str, dict[str, float]]()
        for case, changed in (("nothing changed", 0), ("a tenth changed", rows // 10), ("empty", 0)):
            await stop_in_order(cluster, "n3")
            await fill(namespace, changed, b"w" * VALUE_BYTES)
            before = processor_seconds(cluster)
            node, took[case] = await becomes_whole(cluster, "n4" if case == "empty" else "n3")
            own = node.cpu_seconds()
            others = processor_seconds(cluster) - own - before
            spent[case] = {"its processor s, with its start": round(own, 2), "the others'": round(others, 2)}
            progress = await ask(node.address, "progress")
            moved[case] = sum(progress["updates"].values()) + sum(progress["rows"].values())
            setting.say(f"{figure}: {case}: {moved[case]:,} records in {took[case]:.2f} s")
        await counted(cluster, rows + rows // 10)
    full = took.pop("empty")
    return [
        Measured(
            figure=figure,
            what=f"a node returns to {rows:,} rows, {case}: the time of an empty one to its own",
            value=round(full / took[case], 2),
            unit="x",
            goal=at_least,
            counted=rows,
            seconds=round(took[case], 3),
            parts={"records moved": moved[case], "in full": moved["empty"], "in full s": round(full, 2), **spent[case]},
        )
        for case, at_least in (("nothing changed", UNCHANGED_TIMES), ("a tenth changed", goal))
    ]


NO_HISTORY = ["--wal-segment-bytes", str(1 << 20), "--wal-total-bytes", str(3 << 20), "--checkpoint-ms", "500"]
"""What a log like this is trimmed to is less than what a tenth of the rows is, if those are many."""


async def returned_without_history(setting: Setting, figure: str, goal: float, *, remembered: bool) -> list[Measured]:
    """A node is away while a tenth is changed, and the history of that is gone; against an empty one in its place.

    `remembered`: the others know which keys were changed; else they compare rows.
    """
    rows = setting.updates
    forgets = [] if remembered else ["--mutations-bytes", "0"]
    async with three_nodes(setting, figure, [*NO_HISTORY, *forgets]) as (cluster, database):
        setting.say(f"{figure}: {rows:,} rows")
        namespace = database.namespace(NAMESPACE)
        await fill(namespace, rows, b"v" * VALUE_BYTES)
        await stop_in_order(cluster, "n3")
        await fill(namespace, rows // 10, b"w" * VALUE_BYTES)
        await asyncio.sleep(CHECKPOINTS_SECONDS)
        node, took = await becomes_whole(cluster, "n3")
        progress = await ask(node.address, "progress")
        way = "mutations" if remembered else "differential"
        updates, moved = sum(progress["updates"].values()), progress["rows"].get(way, 0)
        others = sum(progress["rows"].values()) - moved
        await stop_in_order(cluster, "n3")
        _, full = await becomes_whole(cluster, "n4")
        await counted(cluster, rows + rows // 10)
    return [
        Measured(
            figure=figure,
            what=f"a node returns to {rows:,} rows, a tenth changed, its history gone: what moves, of the changed",
            value=round((moved + others + updates) / (rows // 10), 3),
            unit="x",
            goal=goal,
            at_most=True,
            counted=rows,
            seconds=round(took, 3),
            parts={
                "rows remembered" if remembered else "rows that differ": moved,
                "other rows": others,
                "updates": updates,
            },
        ),
        Measured(
            figure=f"{figure}-time",
            what="the time of an empty one to that",
            value=round(full / took, 2),
            unit="x",
            goal=DIFFERENTIAL_TIMES,
            counted=rows,
            seconds=round(took, 3),
            parts={"an empty one s": round(full, 2)},
        ),
    ]


async def is_member(cluster: LocalCluster, name: str) -> bool:
    """Whether the map lists it."""
    return name in [m["node"] for m in (await cluster.status())["members"]]


async def leads_its_share(cluster: LocalCluster, name: str) -> bool:
    """Whether it is primary of about as many partitions as others are: no less than half of its part."""
    status = await cluster.status()
    leads = next(m["primary"] for m in status["members"] if m["node"] == name)
    return bool(2 * leads * len(status["members"]) >= status["partition_count"])


async def holds_all(cluster: LocalCluster, node: NodeProcess) -> bool:
    """Whether it has every partition in sync."""
    status = await cluster.status()
    return any(m["node"] == node.name and m["owning"] == status["partition_count"] for m in status["members"])
