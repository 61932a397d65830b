"""The nodes of a crash run: real `foreshore node` processes, each at a port that stays its own.

A port is drawn below the range from which the kernel takes ports for outgoing connections: a node that dials a dead
peer, or anyone else on this machine, must not be given it while its owner is being killed and started again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Self

import msgspec

from engine.client.admin import ask
from engine.errors import Error, Unavailable
from tests.support.patience import PATIENCE_SECONDS
from tools.local_cluster import LocalCluster, NodeProcess

PORTS = range(12_000, 32_000)
LOOK_SECONDS = 0.05

# Small enough that a kill often meets a rotation, a checkpoint or a trim, and that history often ends too early.
SETTINGS = {
    "partitions": 16,
    "wal_segment_bytes": 32 << 10,
    "wal_total_bytes": 256 << 10,
    "checkpoint_ms": 700,
    "checkpoint_bytes": 64 << 10,
    "heartbeat_ms": 100,
    "suspicion_ms": 500,
    "connection_lost_ms": 200,
    "exchange_delay_ms": 50,
    "exchange_retry_ms": 200,
    "exchange_drain_ms": 500,
    "retransmit_ms": 200,
    "lock_lease_ms": 2_000,
    "lock_timeout_ms": 1_000,
    "in_doubt_ms": 300,
    "supply_batch_bytes": 4 << 10,
}


def options_of(settings: dict[str, Any]) -> list[str]:
    """Settings as flags of `foreshore node start`."""
    return [text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", str(value))]


def free_port(draw: Random) -> int:
    """A port that nobody listens at, and that the kernel gives to nobody who does not ask for it."""
    for _ in range(100):
        port = draw.choice(PORTS)
        with socket.socket() as trial, suppress(OSError):
            trial.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"no port of {PORTS} is free")


class Cluster:
    """Nodes that are always meant to run. Use it in a `with`: none survives it."""

    def __init__(self, directory: Path, names: Sequence[str], *, backups: int = 2, **settings: object) -> None:
        self.directory = directory
        self.names = list(names)
        self.local = LocalCluster(directory, [])
        options = options_of(SETTINGS | {"backups": backups} | settings)
        draw = Random()  # not of the seed: two runs of one seed may be under way on this machine
        for name in names:
            # The last of two flags of one name counts.
            own = [*options, "--listen", f"127.0.0.1:{free_port(draw)}"]
            self.local.nodes[name] = self.make(name, own)
        self.backups = backups
        self._ways: dict[tuple[str, int], Counter[str]] = {}  # by node and process: how its copies caught up, as last told

    def make(self, name: str, options: Sequence[str]) -> NodeProcess:
        """The process of a node, before it is started."""
        return NodeProcess(name, self.directory, options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            self.signal(name, signal.SIGCONT)
            self.kill(name)

    async def form(self) -> None:
        """Start all nodes and make them a cluster."""
        await self.local.form(self.names)

    def node(self, name: str) -> NodeProcess:
        """A node's process."""
        return self.local.nodes[name]

    @property
    def addresses(self) -> str:
        """Where all nodes listen, when they do."""
        return ",".join(node.address for node in self.local.nodes.values())

    def start(self, name: str) -> None:
        """Start a node that does not run, and do not wait for it."""
        node = self.node(name)
        node.start([other.address for other in self.local.nodes.values() if other is not node])

    def kill(self, name: str) -> None:
        """`kill -9`."""
        self.node(name).kill()

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a node that runs."""
        node = self.node(name)
        if node.running:
            os.kill(node.pid, number)

    async def status(self, name: str) -> dict[str, Any] | None:
        """What a node says of itself, or None if it does not answer."""
        try:
            return await ask(self.node(name).address, "status", timeout=2.0)
        except Error:
            return None

    async def coordinator(self) -> str:
        """The node that leads the exchanges, as the first one that answers sees it."""
        for name in self.names:
            status = await self.status(name)
            if status is not None and status.get("coordinator"):
                return str(status["coordinator"])
        return self.names[0]

    async def sick(self) -> list[str]:
        """What keeps the cluster from being healthy; nothing, when all nodes serve and every copy is OWNING."""
        found: list[str] = []
        versions: dict[str, None] = {}
        for name in self.names:
            status = await self.status(name)
            if status is None:
                found.append(f"{name} does not answer")
                continue
            versions[status["version"]] = None
            found += [f"{name}: {problem}" for problem in _problems(status, len(self.names), self.backups)]
        if len(versions) > 1:
            found.append(f"versions {', '.join(versions)}")
        return found

    async def healthy(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the cluster is healthy. Raises Unavailable with what it lacks; and at once if a node has ended."""

        async def holds() -> list[str]:
            self.check_running()
            return await self.sick()

        await eventually(holds, seconds, "the cluster is not healthy")

    def check_running(self) -> None:
        """Raise Error if a node that nobody killed has ended: that is always a fault."""
        for name in self.names:
            node = self.node(name)
            if not node.running:
                raise Error(f"node {name} ended by itself; its log {node.log} ends with:\n{node.last_words(40)}")

    async def keep_evidence(self) -> None:
        """Write down, beside the logs, what each node says of itself."""
        for name in self.names:
            said: dict[str, Any] = {}
            for command in ("status", "progress", "counters"):
                with suppress(Error):
                    said[command] = await ask(self.node(name).address, command, timeout=2.0)
            (self.directory / f"{name}.said.json").write_bytes(msgspec.json.format(msgspec.json.encode(said)))

    async def count_ways(self, ways: Counter[str]) -> None:
        """Add how the fragments of each node caught up since this was asked last."""
        for name in self.names:
            told = Counter((await ask(self.node(name).address, "progress"))["fragments"])
            process = (name, self.node(name).pid)
            ways += told - self._ways.get(process, Counter())
            self._ways[process] = told

    async def quiet(self) -> None:
        """Wait until all copies have counted the same, and no transaction is in doubt. Nobody may write meanwhile."""

        async def holds() -> list[str]:
            counters = [
                {fragment: (c["lwm"], c["hwm"], c["digest"]) for fragment, c in told.items() if c["hwm"]}
                for told in [await ask(self.node(name).address, "counters") for name in self.names]
            ]
            found = [
                f"{fragment}: {[copy.get(fragment) for copy in counters]}"
                for fragment in dict.fromkeys(fragment for copy in counters for fragment in copy)
                if len({copy[fragment] for copy in counters if fragment in copy}) > 1
                or sum(fragment in copy for copy in counters) < min(self.backups + 1, len(self.names))
            ]
            for name in self.names:
                status = await ask(self.node(name).address, "status")
                found += [f"{name} is in doubt about {tx}" for tx in status["in_doubt"]]
            return found

        await eventually(holds, PATIENCE_SECONDS, "the copies do not agree")


def _problems(status: dict[str, Any], members: int, backups: int) -> list[str]:
    wanted = min(backups + 1, members) * status.get("partition_count", 0)
    found = {
        "does not serve": not status["serving"],
        "has no majority": not status["quorum"],
        "is frozen": status["frozen"],
        f"knows {len(status.get('members', []))} of {members} members": len(status.get("members", [])) != members,
        "under-replicated partitions": bool(status.get("under_replicated", 1)),
        "partitions are LOST": bool(status.get("lost")),
        f"{status['behind']} copies are behind": bool(status["behind"]),
        "primaries are promoting": bool(status["partitions"].get("PROMOTING")),
        "copies are not OWNING": sum(m["owning"] for m in status.get("members", [])) != wanted,
    }
    return [problem for problem, there in found.items() if there]


async def eventually(problems: Callable[[], Awaitable[list[str]]], seconds: float, otherwise: str) -> None:
    """Wait until there are no problems. Raises Unavailable with those that are left."""
    until = time.monotonic() + seconds
    while found := await problems():
        if time.monotonic() > until:
            raise Unavailable(f"{otherwise} after {seconds:.0f} s: {'; '.join(found[:10])}")
        await asyncio.sleep(LOOK_SECONDS)
