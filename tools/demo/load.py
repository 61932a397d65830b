"""The demo's load: an hour of flights, a transaction; several under way; every acknowledgement noted outside the cluster.

What an application would do is done here: `Database.run` tries again when a primary was lost, and asks about a commit
whose answer did not come, by its id, before anything is done twice. To prove that a commit that is sent again is applied
once, some that were acknowledged are sent again with the same id: the totals would tell.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from engine import aio
from engine.client.ends import CommitCall
from engine.errors import Error
from tools.demo.flights import FLIGHTS, TOTALS, Hour, Total, decode_total, encode

LOADERS = 12
"""Transactions under way. More than the hours of a day would meet in the stripes of the totals and wait for each other."""
ATTEMPTS = 50
RECENT = 20
BEATS = "beats"
BEAT_SECONDS = 0.005

Writes = list[tuple[str, list[bytes], list[bytes]]]


class Acknowledged(msgspec.Struct, frozen=True):
    """One transaction that the cluster said is committed; one line of the ledger."""

    hour: str
    tx: str
    keys: int
    at: float  # seconds since the load began
    took: float


class Load:
    """Loads hours into a database. `acknowledged` is what the cluster promised."""

    def __init__(self, database: aio.Database, hours: Iterable[Hour], ledger: Path) -> None:
        self.database = database
        self.acknowledged: list[Acknowledged] = []
        self.tries = 0
        self.sent_again = 0
        self._todo = deque(hours)
        self.total = len(self._todo)
        self._flights = database.namespace(FLIGHTS)
        self._totals = {namespace: database.namespace(namespace) for namespace in TOTALS}
        self._recent: deque[tuple[bytes, Writes]] = deque(maxlen=RECENT)
        self._moved = asyncio.Event()
        self._ledger = ledger
        self.began = 0.0

    @property
    def seconds(self) -> float:
        """Since the load began."""
        return time.monotonic() - self.began

    @property
    def done(self) -> int:
        """Transactions acknowledged."""
        return len(self.acknowledged)

    async def run(self) -> None:
        """Load everything. Ends with the first error that trying again does not cure."""
        self.began = time.monotonic()
        with self._ledger.open("wb") as ledger:
            async with asyncio.TaskGroup() as loaders:
                for _ in range(LOADERS):
                    loaders.create_task(self._load(ledger.write))

    async def reached(self, transactions: int) -> None:
        """Wait until so many are acknowledged."""
        while self.done < transactions:
            self._moved.clear()
            await self._moved.wait()

    async def _load(self, note: Callable[[bytes], object]) -> None:
        while self._todo:
            hour = self._todo.popleft()
            began = time.monotonic()
            transaction, writes = await self._commit(hour)
            now = time.monotonic()
            entry = Acknowledged(hour.name, transaction.id, hour.keys, now - self.began, now - began)
            self.acknowledged.append(entry)
            note(encode(entry) + b"\n")
            self._recent.append((bytes.fromhex(transaction.id.partition("@")[0]), writes))
            self._moved.set()

    async def _commit(self, hour: Hour) -> tuple[aio.Transaction, Writes]:
        committed: tuple[aio.Transaction, Writes] | None = None

        async def work(transaction: aio.Transaction) -> None:
            nonlocal committed
            self.tries += 1
            writes: Writes = [(FLIGHTS, list(hour.flights), list(hour.flights.values()))]
            await transaction.namespace(self._flights).put_many(hour.flights)
            for namespace in TOTALS:
                writes.append(await self._add(transaction, namespace, hour.adds[namespace]))
            committed = transaction, writes

        await self.database.run(work, attempts=ATTEMPTS, label=hour.name)
        assert committed is not None, "a transaction that committed was worked on"
        return committed

    async def _add(
        self, transaction: aio.Transaction, namespace: str, adds: dict[bytes, Total]
    ) -> tuple[str, list[bytes], list[bytes]]:
        """Read running totals, under their locks, and write them with what the hour adds."""
        inside = transaction.namespace(self._totals[namespace])
        held = await inside.get_many(adds)
        sums: dict[bytes, bytes] = {}
        for key, add in adds.items():
            value = held.get(key)
            total = decode_total(value) if value is not None else Total()
            total.add(add)
            sums[key] = encode(total)
        await inside.put_many(sums)
        return namespace, list(sums), list(sums.values())

    async def send_again(self) -> None:
        """Send the newest acknowledged commits again, by their ids. Raises Error if one is not answered as before."""
        for tx, writes in list(self._recent):
            again: list[tuple[str, list[bytes], list[bytes | None]]] = [
                (namespace, keys, [*values]) for namespace, keys, values in writes
            ]
            call = CommitCall(tx, tx, optimistic=False, writes=again, locks=[], reads=[])
            try:
                await self.database.session.call(call)
            except Error as error:
                raise Error(f"commit {tx.hex()} was acknowledged, and sent again it got: {error}") from error
            self.sent_again += 1

    # Figures.

    def keys_per_second(self, start: float, end: float) -> float:
        """Keys written by transactions acknowledged in a span of the load."""
        keys = sum(entry.keys for entry in self.acknowledged if start <= entry.at < end)
        return keys / (end - start) if end > start else 0.0

    def acknowledged_in(self, start: float, end: float) -> int:
        """Transactions acknowledged in a span of the load."""
        return sum(start <= entry.at < end for entry in self.acknowledged)

    def longest_silence(self, start: float, end: float) -> float:
        """The longest time without an acknowledgement in a span of the load."""
        times = [start, *(e.at for e in self.acknowledged if start <= e.at < end), end]
        return max(b - a for a, b in pairwise(times))


SPARKS = "▁▂▃▄▅▆▇█"
SPARK_SECONDS = 0.1


class Heart:
    """Single puts, one after another, into partitions of one primary: how long is a write held up when it dies?

    `width` of them are under way at a time, each in keys of its own.
    """

    def __init__(self, database: aio.Database, node: str, *, keys: int = 16, width: int = 1) -> None:
        self._width = width
        self._namespace = database.namespace(BEATS)
        topology = database.session.router.topology
        assert topology is not None, "a connected client has the table"
        numbered = (f"beat-{n}".encode() for n in range(100 * keys * len(topology.members)))
        mine = (k for k in numbered if topology.placements[topology.place(BEATS, k)].primary == node)
        self._keys = [key for key, _ in zip(mine, range(keys), strict=False)]
        self.longest = 0.0
        self.beats = 0

    async def beat(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as beating:
            for first in range(self._width):
                beating.create_task(self._beat(self._keys[first :: self._width]))

    async def _beat(self, keys: list[bytes]) -> None:
        while keys:
            for key in keys:
                began = time.monotonic()
                await self._namespace.put(key, str(self.beats).encode())
                self.longest = max(self.longest, time.monotonic() - began)
                self.beats += 1
                await asyncio.sleep(BEAT_SECONDS)


class Watch:
    """What a reader sees of a load that goes on while something else happens: its rate, and how many copies lag.

    `rates` are beats in a second, and `lags` what `lag` said, for each piece of `SPARK_SECONDS`; of both, `seen` is told.
    """

    def __init__(self, heart: Heart, lag: Callable[[], Awaitable[int]], seen: Callable[[Watch], None]) -> None:
        self._heart = heart
        self._lag = lag
        self._seen = seen
        self.rates: list[int] = []
        self.lags: list[int] = []

    async def look(self) -> None:
        """Beat, and look, until cancelled."""
        beating = asyncio.create_task(self._heart.beat())
        try:
            while not beating.done():
                before, began = self._heart.beats, time.monotonic()
                await asyncio.sleep(SPARK_SECONDS)
                self.lags.append(await self._lag())
                self.rates.append(round((self._heart.beats - before) / (time.monotonic() - began)))
                self._seen(self)
            await beating
        finally:
            beating.cancel()


def spark_line(counts: Sequence[int], *, width: int = 60, worst: Callable[[Sequence[int]], int] = min) -> str:
    """Counts as a line of sparks, of so many columns at most: each is the worst of what it stands for.

    >>> spark_line([0, 4, 8, 8], width=4), spark_line([8, 0, 8, 8], width=2), spark_line([8, 0, 4, 4], width=2, worst=max)
    ('▁▄██', '▁█', '█▄')
    """
    step = -(-len(counts) // width) or 1
    shown = [worst(counts[at : at + step]) for at in range(0, len(counts), step)]
    most = max(counts, default=0) or 1
    return "".join(SPARKS[count * (len(SPARKS) - 1) // most] for count in shown)
