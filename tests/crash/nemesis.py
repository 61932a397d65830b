"""More than kills: links that are cut, slow or half open, stopped processes, names and directories that are not theirs."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Self

from engine.errors import Error
from tests.crash.kills import Kill, one, replaced, two
from tests.crash.processes import Cluster, free_port
from tests.crash.proxies import Pair, Proxies
from tests.support.patience import PATIENCE_SECONDS
from tools.local_cluster import NodeProcess

TROUBLE_SECONDS = (0.3, 3.0)
"""From less than any node waits to more than all of them do."""
SLOW_SECONDS = (0.05, 0.4)


class ProxiedCluster(Cluster):
    """Nodes that reach each other through proxies, and on disks that fail when they are told to."""

    def __init__(self, directory: Path, names: Sequence[str], *, backups: int = 2) -> None:
        self.proxies = Proxies()
        self.options: dict[str, Sequence[str]] = {}
        super().__init__(directory, names, backups=backups)

    def make(self, name: str, options: Sequence[str]) -> NodeProcess:
        listen = int(options[-1].rpartition(":")[2])
        self.options[name] = options
        port = free_port(Random())
        while port == listen:
            port = free_port(Random())
        self.proxies.add(name, port, listen)
        node = super().make(name, [*options, "--advertise", f"127.0.0.1:{port}"])
        node.program = ("-m", "tests.crash.failing_node", str(self.control(name)))
        return node

    def control(self, name: str) -> Path:
        """The file that says what is the matter with a node's disk."""
        return self.directory / f"{name}.disk"

    def __enter__(self) -> Self:
        self.proxies.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.proxies.__exit__()


def _proxies(cluster: Cluster) -> Proxies:
    assert isinstance(cluster, ProxiedCluster), "only links with a proxy can be cut"
    return cluster.proxies


async def _cut(cluster: Cluster, draw: Random, pairs: Sequence[Pair]) -> float:
    """For a while; then some of the connections break, and the others go on with what waited."""
    seconds = draw.uniform(*TROUBLE_SECONDS)
    proxies = _proxies(cluster)
    proxies.ways.cut(pairs)
    await asyncio.sleep(seconds)
    proxies.ways.heal()
    proxies.reset(pair for pair in pairs if draw.random() < 0.3)
    return seconds


async def away(cluster: Cluster, draw: Random) -> str:
    """A node is cut off from all others, in both directions."""
    name = draw.choice(cluster.names)
    pairs = [pair for other in cluster.names if other != name for pair in ((name, other), (other, name))]
    return f"{name} for {await _cut(cluster, draw, pairs):.2f} s"


async def one_way(cluster: Cluster, draw: Random) -> str:
    """A node hears some others and is not heard, or the other way round."""
    name = draw.choice(cluster.names)
    others = [n for n in cluster.names if n != name]
    some = draw.sample(others, draw.randrange(1, len(others) + 1))
    deaf = draw.random() < 0.5
    seconds = await _cut(cluster, draw, [(n, name) if deaf else (name, n) for n in some])
    return f"{name} {'hears nothing of' if deaf else 'is not heard by'} {', '.join(some)} for {seconds:.2f} s"


async def slow_link(cluster: Cluster, draw: Random) -> str:
    """Everything between two nodes takes long."""
    first, second = draw.sample(cluster.names, 2)
    late, seconds = draw.uniform(*SLOW_SECONDS), draw.uniform(*TROUBLE_SECONDS)
    _proxies(cluster).ways.slow([(first, second), (second, first)], late)
    await asyncio.sleep(seconds)
    _proxies(cluster).ways.heal()
    return f"{first} and {second}, {late:.2f} s each way, for {seconds:.2f} s"


async def half_open(cluster: Cluster, draw: Random) -> str:
    """A node dies behind links that do not tell anybody, and is back before they do."""
    name = draw.choice(cluster.names)
    pairs = [pair for other in cluster.names if other != name for pair in ((name, other), (other, name))]
    _proxies(cluster).ways.cut(pairs)
    cluster.kill(name)
    seconds = draw.uniform(0, 1.0)
    await asyncio.sleep(seconds)
    cluster.start(name)
    await asyncio.sleep(draw.uniform(0, 1.0))
    _proxies(cluster).ways.heal()
    return f"{name}, away for {seconds:.2f} s"


async def stopped(cluster: Cluster, draw: Random) -> str:
    """A process is stopped, and goes on as if nothing had been."""
    name, seconds = draw.choice(cluster.names), draw.uniform(*TROUBLE_SECONDS)
    cluster.signal(name, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    cluster.signal(name, signal.SIGCONT)
    return f"{name} for {seconds:.2f} s"


async def failing_disk(cluster: Cluster, draw: Random) -> str:
    """A disk is full, or refuses a sync: the node stops, and is started when the disk is well."""
    assert isinstance(cluster, ProxiedCluster)
    name, trouble = draw.choice(cluster.names), draw.choice(("full", "sync"))
    cluster.control(name).write_text(trouble, encoding="ascii")
    ended = await cluster.node(name).ended(PATIENCE_SECONDS)
    cluster.control(name).unlink()
    if not ended:
        raise Error(f"{name} runs on with a disk that is {trouble}")
    cluster.start(name)
    return f"{name}, {trouble}"


async def slow_disk(cluster: Cluster, draw: Random) -> str:
    """Every sync of a disk takes long."""
    assert isinstance(cluster, ProxiedCluster)
    name, seconds = draw.choice(cluster.names), draw.uniform(*TROUBLE_SECONDS)
    cluster.control(name).write_text("slow", encoding="ascii")
    await asyncio.sleep(seconds)
    cluster.control(name).unlink()
    return f"{name} for {seconds:.2f} s"


async def same_name(cluster: Cluster, draw: Random) -> str:
    """Somebody starts a second process of a live node's name, with an empty directory, and ends it again."""
    name, seconds = draw.choice(cluster.names), draw.uniform(*TROUBLE_SECONDS)
    assert isinstance(cluster, ProxiedCluster)
    place = cluster.directory / "twin"
    place.mkdir()
    port = f"127.0.0.1:{free_port(Random())}"
    twin = NodeProcess(name, place, [*cluster.options[name], "--listen", port, "--advertise", port])
    twin.start([cluster.node(other).address for other in cluster.names if other != name])
    await asyncio.sleep(seconds)
    ended = not twin.running
    twin.kill()
    shutil.rmtree(place)
    return f"{name} for {seconds:.2f} s{', which ended by itself' if ended else ''}"


async def swapped(cluster: Cluster, draw: Random) -> str:
    """Two nodes come back each with the other's directory, and must refuse it."""
    names = draw.sample(cluster.names, 2)
    for name in names:
        cluster.kill(name)
    first, second = (cluster.node(name).data for name in names)
    _swap(first, second)
    for name in names:
        cluster.start(name)
    for name in names:
        if not await cluster.node(name).ended(PATIENCE_SECONDS):
            raise Error(f"{name} runs on the directory of another node: {names}")
    _swap(first, second)
    for name in names:
        cluster.start(name)
    return " and ".join(names)


def _swap(first: Path, second: Path) -> None:
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


NEMESIS: dict[str, tuple[Kill, int]] = {
    "one": (one, 3),
    "two": (two, 2),
    "replaced": (replaced, 1),
    "away": (away, 3),
    "one-way": (one_way, 4),
    "slow-link": (slow_link, 2),
    "half-open": (half_open, 3),
    "stopped": (stopped, 2),
    "failing-disk": (failing_disk, 2),
    "slow-disk": (slow_disk, 2),
    "same-name": (same_name, 2),
    "swapped": (swapped, 1),
}
"""By name: the trouble, and how often it comes."""
