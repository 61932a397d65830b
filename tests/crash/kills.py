"""The ways in which nodes are killed: what a cycle does between a healthy cluster and a healthy cluster."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping
from random import Random

from tests.crash.processes import Cluster

Kill = Callable[[Cluster, Random], Awaitable[str]]
"""Kills and starts nodes; returns what it did, for the record. In the end all nodes run."""


async def one(cluster: Cluster, draw: Random) -> str:
    """A node dies, is missed (or is back before anyone missed it), and returns."""
    name = draw.choice(cluster.names)
    cluster.kill(name)
    away = draw.choice((0.0, draw.uniform(0.1, 1.0)))
    await asyncio.sleep(away)
    cluster.start(name)
    return f"{name} for {away:.2f} s"


async def coordinator(cluster: Cluster, draw: Random) -> str:
    """The node that leads the exchanges dies, and leaves to another what it had begun."""
    name = await cluster.coordinator()
    cluster.kill(name)
    away = draw.uniform(0.1, 1.0)
    await asyncio.sleep(away)
    cluster.start(name)
    return f"{name}, the coordinator, for {away:.2f} s"


async def successor(cluster: Cluster, draw: Random) -> str:
    """A node dies, and then the coordinator, amid the exchange that takes the first one out."""
    leader = await cluster.coordinator()
    name = draw.choice([n for n in cluster.names if n != leader])
    cluster.kill(name)
    pause = draw.uniform(0.2, 0.6)
    await asyncio.sleep(pause)
    cluster.kill(leader)
    await asyncio.sleep(draw.uniform(0, 0.5))
    for dead in draw.sample((name, leader), 2):
        cluster.start(dead)
    return f"{name}, and after {pause:.2f} s the coordinator {leader}"


async def two(cluster: Cluster, draw: Random) -> str:
    """Two nodes die at once: the others have no majority, or some partitions are lost, until they are back."""
    names = draw.sample(cluster.names, 2)
    for name in names:
        cluster.kill(name)
    away = draw.uniform(0, 1.0)
    await asyncio.sleep(away)
    for name in names:
        cluster.start(name)
        await asyncio.sleep(draw.choice((0.0, 0.3)))
    return f"{' and '.join(names)} for {away:.2f} s"


async def everyone(cluster: Cluster, draw: Random) -> str:
    """All die at once, as in a power cut that loses nothing but the processes."""
    for name in cluster.names:
        cluster.kill(name)
    names = draw.sample(cluster.names, len(cluster.names))
    for name in names:
        cluster.start(name)
        await asyncio.sleep(draw.choice((0.0, 0.2)))
    return f"all, started again as {', '.join(names)}"


async def recovering(cluster: Cluster, draw: Random) -> str:
    """A node dies, and dies again while it recovers, listens for the first time, or joins."""
    name = draw.choice(cluster.names)
    cluster.kill(name)
    await asyncio.sleep(draw.choice((0.0, 0.6)))
    said: list[str] = []
    for _ in range(draw.randrange(1, 3)):
        cluster.start(name)
        alive = draw.uniform(0.2, 1.2)
        await asyncio.sleep(alive)
        cluster.kill(name)
        said.append(f"{alive:.2f}")
    cluster.start(name)
    return f"{name}, again after {' and '.join(said)} s"


async def rebalancing(cluster: Cluster, draw: Random) -> str:
    """A node that was away catches up, and the one that supplies it dies; or it dies itself, half supplied."""
    name, other = draw.sample(cluster.names, 2)
    cluster.kill(name)
    await asyncio.sleep(draw.uniform(0.6, 1.0))
    cluster.start(name)
    await cluster.node(name).ready()
    caught = draw.uniform(0, 0.5)
    await asyncio.sleep(caught)
    victim = draw.choice((name, other))
    cluster.kill(victim)
    await asyncio.sleep(draw.uniform(0, 0.5))
    cluster.start(victim)
    return f"{name}, and {victim} {caught:.2f} s after it was back"


async def replaced(cluster: Cluster, draw: Random) -> str:
    """A node comes back with an empty disk, and dies while it is supplied in full."""
    name = draw.choice(cluster.names)
    cluster.kill(name)
    shutil.rmtree(cluster.node(name).data)
    cluster.start(name)
    await cluster.node(name).ready()
    loaded = draw.uniform(0, 0.6)
    await asyncio.sleep(loaded)
    cluster.kill(name)
    await asyncio.sleep(draw.choice((0.0, 0.5)))
    cluster.start(name)
    return f"{name} with an empty disk, again after {loaded:.2f} s"


KILLS: dict[str, tuple[Kill, int]] = {
    "one": (one, 6),
    "coordinator": (coordinator, 3),
    "successor": (successor, 2),
    "two": (two, 3),
    "everyone": (everyone, 2),
    "recovering": (recovering, 3),
    "rebalancing": (rebalancing, 3),
    "replaced": (replaced, 2),
}
"""By name: the kill, and how often it comes."""


def schedule(draw: Random, cycles: int, kinds: Mapping[str, tuple[Kill, int]] = KILLS) -> list[str]:
    """Which kill in which cycle: each kind in its proportion, in an order of the seed's."""
    deck = [name for name, (_, weight) in kinds.items() for _ in range(weight)]
    drawn: list[str] = []
    while len(drawn) < cycles:
        drawn += draw.sample(deck, len(deck))
    return drawn[:cycles]
