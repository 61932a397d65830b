"""What all workloads share: the loop around a step, names and sizes, and what must be there before anything goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import TYPE_CHECKING

from engine import errors
from engine.client.namespaces import AskNodes
from rebalance.namespaces import Stands
from tests.sim.clients import SECOND, Client
from tests.sim.network import MS
from tests.sim.recorder import Recorder
from tests.sim.transactions import SimTransaction
from tests.sim.workloads.ages import Seen
from tests.sim.workloads.jobs import Jobs
from tests.sim.workloads.rivals import Rivals
from wal.ids import TxId

if TYPE_CHECKING:
    from tests.sim.workloads.fleeting import Fleeting
    from tests.sim.workloads.one_key import Many

ACCOUNTS = tuple(f"a{i}" for i in range(6))
BALANCE = 100
GROUPED = ("bank", "ring", "lists", "registers", "retry", "strays", "bulk", "batches", "fleeting", "late")
"""Those that may have copies of their own."""
NODES_OF_RING = tuple(f"r{i}" for i in range(6))
TIMEOUT_NS = 4_000 * MS


class Ending:
    """What all clients together know of the namespace that is dropped: see `tests.sim.workloads.ending`."""

    def __init__(self) -> None:
        self.written: list[bytes] = []  # and acknowledged, since the last drop was ordered
        self.doomed: list[bytes] = []  # that had been acknowledged when the drop was ordered that is under way
        self.gone: dict[bytes, None] = {}  # by a drop that was seen to be over
        self.seen = ""  # what the order under way names
        self.drops = 0


Step = Callable[[int], Awaitable[int]]
"""One thing that a process does; the process to go on as."""


Workload = Callable[["Load", Client, Random], Step]


def either(first: Workload, second: Workload) -> Workload:
    """Now one of them, now the other."""

    def both(load: Load, client: Client, rng: Random) -> Step:
        one, other = first(load, client, rng), second(load, client, rng)

        async def step(process: int) -> int:
            return await (one if rng.random() < 0.5 else other)(process)

        return step

    return both


class Load:
    """The clients' doings of one run. `pace` stretches all pauses; `stopping` ends every loop after what it is at.

    `given_up` are the partitions that an operator had begin again: what was told may not be true any more.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.stopping = False
        self.given_up: Mapping[int, None] = {}
        self.fleeting: list[Fleeting] = []  # keys that expire
        self.ending = Ending()  # a namespace that is dropped and begun anew
        self.jobs = Jobs()  # of the queue
        self.many: Many | None = None  # who write one key, where that is done
        self.told_late: dict[int, TxId] = {}  # numbers that were counted, and by whom
        self.registers = Seen()
        self.pace = 1
        self.done = 0
        self.rivals = Rivals(recorder.world)
        self._element = 0
        self._pausing: dict[asyncio.Future[None], Client] = {}

    def element(self) -> int:
        """A value that is used once."""
        self._element += 1
        return self._element

    async def repeat(self, client: Client, rng: Random, step: Step, pause_ns: int) -> None:
        """Do something again and again, as one process after the other."""
        process = self.recorder.process()
        while not self.stopping:
            process = await step(process)
            self.done += 1
            await self.pause(client, self.pace * rng.randrange(pause_ns))

    async def pause(self, client: Client, ns: int) -> None:
        """Do nothing for a while, or until the load ends: nobody waits for who is idle."""
        if self.stopping:
            return
        over = client.loop.create_future()
        timer = client.loop.call_later(ns / SECOND, _end, over)
        self._pausing[over] = client
        try:
            await over
        finally:
            timer.cancel()
            del self._pausing[over]

    def stop(self) -> None:
        """Let every loop end after what it is at."""
        self.stopping = True
        for over, client in list(self._pausing.items()):
            client.loop.heard(_end, over)


def _end(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


def begin(client: Client, rng: Random) -> SimTransaction:
    """A transaction of any kind, more or less patient; of every third what it writes is staged, each key by itself."""
    tx = SimTransaction(
        client,
        optimistic=rng.random() < 0.5,
        timeout_ns=rng.choice([TIMEOUT_NS, TIMEOUT_NS // 8]),
        lock_timeout_ms=rng.choice([5_000, 1_000, 100]),
        lasts_ns=rng.choice([30_000, 30_000, 2_000]) * MS,
    )
    if not tx.owner[-1] % 3:
        tx.at_once = 1
    return tx


async def give_up(tx: SimTransaction, load: Load, rng: Random) -> None:
    """Roll back: mostly at once, sometimes when the locks are somebody else's already."""
    if rng.random() < 0.2:
        await load.pause(tx.client, rng.choice([50, 1_500, 4_000]) * MS)
    await tx.rollback()


async def give_copies(client: Client, rng: Random) -> None:
    """Give some of the namespaces that are about to be written copies of their own."""
    for name in rng.sample(GROUPED, rng.randrange(1, len(GROUPED))):
        order = {"name": [name], "seen": ["0.0"], "ttl_ms": ["0"], "backups": [str(rng.randrange(1, 4))]}
        if client.world.behind:
            order["async_backups"] = [str(rng.randrange(3))]
        await client.call(AskNodes(order), timeout_ns=60_000 * MS)
        while True:
            looked = AskNodes({})
            await client.call(looked, timeout_ns=60_000 * MS)
            if all(report.get(name, {}).get("stands") == Stands.THERE for report in looked.reports):
                break
            await client.pause(20 * MS)


async def set_up(client: Client) -> None:
    """What must be there before anything goes wrong: the accounts and the ring."""
    tx = SimTransaction(client, timeout_ns=60_000 * MS)
    await tx.put("bank", {a.encode(): str(BALANCE).encode() for a in ACCOUNTS})
    following = (*NODES_OF_RING[1:], NODES_OF_RING[0])
    await tx.put("ring", {a.encode(): b.encode() for a, b in zip(NODES_OF_RING, following, strict=True)})
    try:
        await tx.commit()
    except errors.Error:
        await tx.rollback()
        raise


async def failed(tx: SimTransaction, load: Load, process: int, rng: Random, error: errors.Error) -> int:
    """A transaction was told an error: record it and give up; the process to go on as."""
    process = load.recorder.failed(process, error)
    await give_up(tx, load, rng)
    return process
