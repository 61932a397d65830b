"""How much sooner copies are whole again when partitions migrate side by side than one after the other.

Three nodes hold two copies of each partition, over links that take `ONE_WAY_SECONDS` each way. One of them goes, and the
other two get what they lack: once because it *leaves* in good order (the baseline is ordered without it, so that its
copies are made elsewhere while it serves), once because it *crashes* (it is killed, and the baseline is ordered without it
when the map has it lost; the time in which a death is noticed is `foreshore bench blocked`). What is measured is the time
from that order until both have every partition in sync: the exchange, the transfers, and the light steps by which copies
come to count.

*Serial* is `max_parallel_migrations` = 1, which is counted by pair: a node is supplied by each other one with one large
partition at a time. Who leaves supplies, too, so that four pairs are at work then, and two after a crash. What counts as
large is a number of updates (`rebalance.supplier.MANY_UPDATES`); of smaller partitions many share a session whatever is
set, and one at a time would not be slow. So each partition has `ROWS` small rows, written over until it is large: the
waiting is compared, and of what rows cost there is little in it.

Against n at a time no more than n x can come out: a session takes one round trip, whatever is in it. Against all at once
it is as many round trips as a pair has partitions, by the round trips that none is spared: those of the exchange, the
session, the comparison of what both sides contain, and the step.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

from engine import aio
from engine.client.admin import ask
from engine.errors import Error
from rebalance.supplier import MANY_UPDATES
from tools.bench.cluster import NAMESPACE, counted
from tools.bench.figures import Measured, Setting
from tools.bench.links import SlowLinks, behind
from tools.bench.transfer import PATIENCE_SECONDS
from tools.local_cluster import LocalCluster, NodeProcess, until
from wal.ids import partition_of

NODES = ("n1", "n2", "n3")
STAY, GOES = NODES[:2], NODES[2]
ONE_WAY_SECONDS = 0.02
ROWS = 32
"""In each partition."""
ROWS_AT_ONCE = 8_192
UPDATES_A_PARTITION = 200
"""There is a partition for so many of the `--updates`: by default, as many as a cluster has by default."""
PARTITIONS_MIN = 16
PATIENT = ["--suspicion-ms", "10000"]
"""Nobody is suspected or set aside for a busy machine; who is killed is missed as soon as its connections break."""
SERIAL, USUAL, ALL = 1, 10, 16_384
"""`max_parallel_migrations`: one at a time, the default, and as many as there may be."""
GOALS = {"leaves": 12.0, "crashes": 20.0}


def partitions_of(updates: int) -> int:
    """How many partitions there are to be: a power of two."""
    wanted = max(PARTITIONS_MIN, updates // UPDATES_A_PARTITION)
    return 1 << (wanted - 1).bit_length()


def keys_of_all(partitions: int) -> list[bytes]:
    """`ROWS` keys of each partition."""
    left = dict.fromkeys(range(partitions), ROWS)
    keys: list[bytes] = []
    numbers = itertools.count()
    while left:
        key = b"key-%08d" % next(numbers)
        at = partition_of(key, partitions)
        if at in left:
            keys.append(key)
            left[at] -= 1
            if not left[at]:
                del left[at]
    return keys


async def side_by_side(setting: Setting, figure: str) -> list[Measured]:
    """The time until the copies are whole again, one at a time, against ten at a time and all at once."""
    partitions = partitions_of(setting.updates)
    directory = setting.directory / figure
    directory.mkdir()
    took: dict[int, dict[str, float]] = {}
    async with SlowLinks() as links:
        fronts = {name: await links.add() for name in NODES}
        with LocalCluster(directory, []) as cluster:
            for most in (SERIAL, USUAL, ALL):
                options = [*PATIENT, "--backups", "1", "--partitions", str(partitions)]
                options += ["--max-parallel-migrations", str(most)]
                await _end(cluster)
                for name, front in fronts.items():
                    cluster.nodes[name] = NodeProcess(name, directory, [*options, *front])
                if took:
                    await _begin_again(cluster)
                else:
                    setting.say(f"{figure}: {partitions:,} partitions are written over until they are large")
                    await _fill(cluster, partitions)
                links.delay_seconds = ONE_WAY_SECONDS
                took[most] = await _both(cluster, partitions)
                links.delay_seconds = 0.0
                said = ", ".join(f"{case} {seconds:.2f} s" for case, seconds in took[most].items())
                setting.say(f"{figure}: {most:,} at a time: one {said}")
    return figures_of(figure, partitions, took)


def figures_of(figure: str, partitions: int, took: Mapping[int, Mapping[str, float]]) -> list[Measured]:
    """Each case by ten, and by all at once, against one at a time; `took`: seconds by limit and case."""
    return [
        Measured(
            figure=f"{figure}-{case}-{name}",
            what=f"one of {len(NODES)} nodes {case}, {partitions:,} partitions, {1000 * ONE_WAY_SECONDS:g} ms each way: "
            f"until the copies are whole, one at a time to {name} at a time",
            value=round(took[SERIAL][case] / took[most][case], 2),
            unit="x",
            goal=goal,
            counted=partitions * MANY_UPDATES,
            seconds=round(took[most][case], 3),
            parts={"one at a time s": round(took[SERIAL][case], 2), f"{name} s": round(took[most][case], 2)},
        )
        for case, goal in GOALS.items()
        for most, name in ((USUAL, "10"), (ALL, "all"))
    ]


async def _fill(cluster: LocalCluster, partitions: int) -> None:
    """A new cluster, each of whose partitions is a large one."""
    await cluster.form(NODES)
    keys = keys_of_all(partitions)
    async with await aio.connect(cluster.addresses, timeout=60) as database:
        namespace = database.namespace(NAMESPACE)
        for number in range(MANY_UPDATES // ROWS):
            for first in range(0, len(keys), ROWS_AT_ONCE):
                await namespace.put_many(dict.fromkeys(keys[first : first + ROWS_AT_ONCE], b"%d" % number))


async def _end(cluster: LocalCluster) -> None:
    """All nodes that run stop, in sync."""
    if cluster.running:
        await ask(cluster.running[0].address, "halt")
    for node in cluster.nodes.values():
        if not await node.ended(PATIENCE_SECONDS):
            raise Error(f"{node.name} was asked to stop and did not; its log says:\n{node.last_words()}")


async def _begin_again(cluster: LocalCluster) -> None:
    """All nodes start, with what they have."""
    for name in NODES:
        await cluster.start(name).ready()
    await until(lambda: cluster.healthy(len(NODES)), PATIENCE_SECONDS, "the cluster did not come back")


async def _both(cluster: LocalCluster, partitions: int) -> dict[str, float]:
    """How long each case takes: a node leaves, has its part again, and crashes; then it has its part again."""
    leaves = await _ordered(cluster, STAY, partitions)
    await _ordered(cluster, NODES, partitions)
    cluster.nodes[GOES].kill()
    await until(lambda: _lost(cluster), PATIENCE_SECONDS, f"{GOES} was not missed")
    crashes = await _ordered(cluster, STAY, partitions)
    await counted(cluster, partitions * MANY_UPDATES)
    await cluster.start(GOES).ready()
    await until(lambda: cluster.healthy(len(NODES)), PATIENCE_SECONDS, f"{GOES} did not come back")
    await _ordered(cluster, NODES, partitions)
    return {"leaves": leaves, "crashes": crashes}


async def _ordered(cluster: LocalCluster, names: Sequence[str], partitions: int) -> float:
    """These are to hold the data; how long it takes from that order until they do."""
    began = time.perf_counter()
    await ask(behind(cluster.nodes[names[0]].address), "baseline", nodes=list(names))

    async def whole() -> bool:
        return is_spread(await _status(cluster), names, partitions)

    await until(whole, PATIENCE_SECONDS, f"{', '.join(names)} did not get everything")
    return time.perf_counter() - began


def is_spread(status: Mapping[str, Any], names: Sequence[str], partitions: int) -> bool:
    """Whether these alone are meant to hold data and hold two copies of all, each at least half of its part of them."""
    owning = {m["node"]: m["owning"] for m in status["members"] if m["node"] in names}
    part = 2 * partitions // len(names)
    return (
        status["baseline"] == list(names)
        and not any(m["moving"] for m in status["members"])
        and len(owning) == len(names)
        and all(2 * count >= part for count in owning.values())
        and sum(owning.values()) == 2 * partitions
    )


async def _lost(cluster: LocalCluster) -> bool:
    return GOES not in [m["node"] for m in (await _status(cluster))["members"]]


async def _status(cluster: LocalCluster) -> dict[str, Any]:
    """What a node that stays says of the cluster, at once: the watcher's own questions are not delayed."""
    return await ask(behind(cluster.nodes[STAY[0]].address), "status")
