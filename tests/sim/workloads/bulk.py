"""Large batches: fragments of thousands of rows, tombstones by the ten thousand, keys of any bytes, values of any size.

One client writes them, so what a key may hold is known without a search: what was acknowledged last, and, if a batch was
not answered, either that or what it would have written; such a key is never written again. Some are transactions of either
kind. For some a rival, who writes nothing, has locked a key, so that they wait for it, or in vain.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random

from engine import errors
from engine.client.calls import PutCall
from engine.client.scans import ScanCall
from tests.sim.network import MS
from tests.sim.transactions import SimTransaction
from tests.sim.violation import About, Violation
from tests.sim.workloads.load import TIMEOUT_NS, Load
from wal.ids import KEY_BYTES_MAX

NAMESPACE = "bulk"
PAGE = 2_000
PAUSE_NS = 800 * MS
BYTES_MAX = 1 << 20
"""A batch has about so many bytes at most."""
TRANSACTIONS = 0.4
RIVALS = 0.25
"""For so many batches a key is locked by somebody else."""
RIVALS_MS = (1, 30, 300, 3_000)
LONG = 0.02
"""So many keys are as long as keys may be."""

Row = tuple[str, bytes]


class Bulk:
    """The client's book. `namespaces` and `most` are the shape's."""

    def __init__(self, load: Load, rng: Random, *, namespaces: int, most: int, narrow: bool) -> None:
        self.client = load.recorder.world.add_client(NAMESPACE)
        self.rival = load.recorder.world.add_client("rival")
        self.client.sheltered = self.rival.sheltered = True  # the book dies with them
        self._load = load
        self._rng = rng
        self._namespaces = [f"{NAMESPACE}{number}" for number in range(namespaces)]
        self._most = most
        self._narrow = narrow  # into a few partitions, or into all
        self.possible: dict[Row, tuple[bytes | None, ...]] = {}
        self._numbers = 0
        self.written = 0  # so many rows, for certain
        self.deleted = 0
        self.committed = 0  # so many transactions
        self.client.spawn(self._run(), NAMESPACE)

    async def _run(self) -> None:
        """Write batches until the load ends."""
        while not self._load.stopping:
            await self._write()
            await self._load.pause(self.client, self._load.pace * self._rng.randrange(PAUSE_NS))

    async def _write(self) -> None:
        rng = self._rng
        namespace = rng.choice(self._namespaces)
        delete = rng.random() < 0.4
        keys = self._choose(namespace, rng.randrange(1, self._most + 1), old=delete or rng.random() < 0.3)
        if not keys:
            return
        size = rng.choice([0, 1, 40, BYTES_MAX // len(keys)])
        value = None if delete else b"%d:" % self._load.element() + bytes(min(size, BYTES_MAX))
        before = {(namespace, key): self.possible.get((namespace, key), (None,)) for key in keys}
        self.possible |= {row: (*held, value) for row, held in before.items()}
        if rng.random() < RIVALS:
            self.rival.spawn(self._stand_in_the_way(namespace, rng.choice(keys)), "rival")
        try:
            await self._say(namespace, dict.fromkeys(keys, value))
        except errors.Error as error:
            self._load.recorder.told(error)
            return  # one partition may have refused what others took, so a refusal says no more than silence
        self.possible |= dict.fromkeys(before, (value,))
        self.written += 0 if delete else len(keys)
        self.deleted += len(keys) if delete else 0

    async def _say(self, namespace: str, rows: dict[bytes, bytes | None]) -> None:
        if self._rng.random() < TRANSACTIONS:
            transaction = SimTransaction(self.client, optimistic=self._rng.random() < 0.5, timeout_ns=TIMEOUT_NS)
            try:
                await transaction.put(namespace, rows)
                await transaction.commit()
            except errors.Error:
                await transaction.rollback()
                raise
            self.committed += 1
        else:
            call = PutCall(self.client.new_tx(), namespace, list(rows), list(rows.values()))
            await self.client.call(call, timeout_ns=TIMEOUT_NS)

    async def _stand_in_the_way(self, namespace: str, key: bytes) -> None:
        """Lock a key for a while, and write nothing."""
        transaction = SimTransaction(self.rival, timeout_ns=TIMEOUT_NS)
        with suppress(errors.Error):
            await transaction.put(namespace, {key: b"never"})
            await self.rival.pause(self._rng.choice(RIVALS_MS) * MS)
        await transaction.rollback()

    def _choose(self, namespace: str, count: int, *, old: bool) -> list[bytes]:
        if old:
            known = [key for (ns, key), held in self.possible.items() if ns == namespace and len(held) == 1]
            return self._rng.sample(known, min(count, len(known)))
        self._numbers += 1
        tag = b"{%d}" % self._rng.randrange(3) if self._narrow else b""
        return [self._name(tag + b"%d-%d" % (self._numbers, at)) for at in range(count)]

    def _name(self, key: bytes) -> bytes:
        """A key of any bytes, which keeps its tag and is one of its kind."""
        more = self._rng.choice((b"", b"\0", b"\xff", b"\0\xff\0", b"\xff\xff", bytes([self._rng.randrange(256)])))
        key += b"/" + more
        return key.ljust(KEY_BYTES_MAX, b"\xff") if self._rng.random() < LONG else key

    async def read(self) -> None:
        """When nothing is written any more: every row, by scans in pages, against what it may hold."""
        for namespace in self._namespaces:
            held: dict[bytes, bytes] = {}
            start: bytes | None = b"\0"
            while start is not None:
                page = await self.client.call(ScanCall(namespace, start, None, PAGE), timeout_ns=10 * TIMEOUT_NS)
                held |= dict(page.rows)
                start = page.next_start
            for (ns, key), possible in self.possible.items():
                if ns == namespace and held.pop(key, None) not in possible:
                    raise Violation(
                        "history-bulk",
                        f"{key!r} of {namespace} holds none of what may be there: {[v and v[:20] for v in possible]}",
                        About(keys=(key,)),
                    )
            if held:
                raise Violation("history-bulk", f"{namespace} has keys that nobody wrote: {list(held)[:4]}")
