"""How fast an empty node gets everything, how a node is replaced beside a load, and what one that returns is spared."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from engine import aio
from engine.client.admin import ask
from tools.bench.cluster import NAMESPACE, counted, memory_of
from tools.bench.figures import Measured, Setting, per_second
from tools.local_cluster import LocalCluster, NodeProcess, until

PUT_AT_ONCE = 1_000
LARGE_BYTES = 10_000
LARGE_LESS = 10
"""So many times fewer rows, where they are large."""
PATIENCE_SECONDS = 600.0


@asynccontextmanager
async def _one_node(setting: Setting, figure: str) -> AsyncIterator[tuple[LocalCluster, aio.Database]]:
    """A cluster of one, with a client; another may be put beside it."""
    directory = setting.directory / figure
    directory.mkdir()
    with LocalCluster(directory, ["--backups", "1"]) as cluster:
        await cluster.form(["n1"])
        async with await aio.connect(cluster.addresses, timeout=120) as database:
            yield cluster, database


async def _fill(namespace: aio.Namespace[bytes, bytes], rows: int, value: bytes) -> None:
    at_once = max(1, min(PUT_AT_ONCE, (4 << 20) // len(value)))
    for first in range(0, rows, at_once):
        await namespace.put_many({b"key-%09d" % n: value for n in range(first, min(rows, first + at_once))})


async def full_transfer(setting: Setting, figure: str, size: int, goal: float) -> list[Measured]:
    """Rows of `size` bytes, from the node that has them all to an empty one; the goal is in rows, or in MB where large."""
    large = size >= LARGE_BYTES
    rows = max(1, setting.updates // LARGE_LESS) if large else setting.updates
    async with _one_node(setting, figure) as (cluster, database):
        setting.say(f"{figure}: {rows:,} rows of {size:,} bytes")
        await _fill(database.namespace(NAMESPACE), rows, b"v" * size)
        source, node = cluster.nodes["n1"], cluster.start("n2")
        await node.ready()
        await until(lambda: _is_member(cluster, "n2"), PATIENCE_SECONDS, "the new node was not let in")
        setting.say(f"{figure}: an empty node is to have them, too")
        before = [memory_of(n.pid)["own"] for n in (source, node)]
        spent, began = [source.cpu_seconds(), node.cpu_seconds()], time.perf_counter()
        await ask(source.address, "baseline", nodes=["n1", "n2"])
        most = list(before)

        async def whole() -> bool:
            for at, process in enumerate((source, node)):
                most[at] = max(most[at], memory_of(process.pid)["own"])
            return await _holds_all(cluster, node)

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


async def _is_member(cluster: LocalCluster, name: str) -> bool:
    return name in [m["node"] for m in (await cluster.status())["members"]]


async def _holds_all(cluster: LocalCluster, node: NodeProcess) -> bool:
    status = await cluster.status()
    return any(m["node"] == node.name and m["owning"] == status["partition_count"] for m in status["members"])
