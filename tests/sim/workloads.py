"""What clients do while a world goes wrong, and how their histories are judged.

Each workload is chosen for what it would notice: the bank a half transfer, the lists an order that no serial execution
explains, the ring half a rotation, registers a stale read or a write that came twice, the set a lost element, versions
one that went back. All run at once, over the same few nodes, and on few keys, so that they meet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import Random

from engine import errors
from engine.client.calls import GetCall, PutCall, ScanCall, SwapCall
from tests.sim.checkers import bank, list_append, monotonic, register, ring, scan, sets
from tests.sim.checkers.history import (
    Add,
    Anomaly,
    Append,
    CompareAndSet,
    Get,
    Observe,
    Put,
    Read,
    ReadBalances,
    ReadRing,
    ReadSet,
    Rotate,
    Scan,
    Stamp,
    Transaction,
    Transfer,
)
from tests.sim.clients import Client
from tests.sim.network import MS
from tests.sim.recorder import Recorder
from tests.sim.transactions import SimTransaction

ACCOUNTS = tuple(f"a{i}" for i in range(6))
BALANCE = 100
NODES_OF_RING = tuple(f"r{i}" for i in range(6))
REGISTERS = tuple(f"x{i}" for i in range(5))
LISTS = 5
LIST_MAX = 25
"""A list that is so long is retired, for the history grows with the square of its length."""
TIMEOUT_NS = 4_000 * MS


class Load:
    """The clients' doings of one run. `stopping` ends every loop after what it is at."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.stopping = False
        self.done = 0
        self._element = 0

    def element(self) -> int:
        """A value that is used once."""
        self._element += 1
        return self._element

    async def repeat(self, client: Client, rng: Random, step: Callable[[int], Awaitable[int]], pause_ns: int) -> None:
        """Do something again and again, as one process after the other."""
        process = self.recorder.process()
        while not self.stopping:
            process = await step(process)
            self.done += 1
            await client.pause(rng.randrange(pause_ns))


async def set_up(client: Client) -> None:
    """What must be there before anything goes wrong: the accounts and the ring."""
    tx = SimTransaction(client, timeout_ns=60_000 * MS)
    await tx.put("bank", {a.encode(): str(BALANCE).encode() for a in ACCOUNTS})
    following = (*NODES_OF_RING[1:], NODES_OF_RING[0])
    await tx.put("ring", {a.encode(): b.encode() for a, b in zip(NODES_OF_RING, following, strict=True)})
    await tx.commit()


# Transactions.


def bank_of(load: Load, client: Client, rng: Random) -> Callable[[int], Awaitable[int]]:
    """Transfers between accounts, and reads of all of them."""
    keys = [a.encode() for a in ACCOUNTS]

    async def step(process: int) -> int:
        recorder, tx = load.recorder, SimTransaction(client, optimistic=rng.random() < 0.5, timeout_ns=TIMEOUT_NS)
        try:
            if rng.random() < 0.3:
                recorder.begin("bank", process, ReadBalances())
                found = await tx.get("bank", keys)
                await tx.commit()
                recorder.end(process, "ok", ReadBalances({k.decode(): int(v) for k, v in found.items() if v is not None}))
                return process
            source, target = rng.sample(ACCOUNTS, 2)
            amount = rng.randrange(1, 30)
            recorder.begin("bank", process, Transfer(source, target, amount))
            found = await tx.get("bank", [source.encode(), target.encode()])
            left = int(found[source.encode()] or b"0") - amount
            if left < 0:
                await tx.rollback()
                recorder.end(process, "fail")
                return process
            gained = int(found[target.encode()] or b"0") + amount
            await tx.put("bank", {source.encode(): str(left).encode(), target.encode(): str(gained).encode()})
            await tx.commit()
            recorder.end(process, "ok")
        except errors.Error as error:
            process = recorder.failed(process, error)
            await tx.rollback()
        return process

    return step


def lists_of(load: Load, client: Client, rng: Random) -> Callable[[int], Awaitable[int]]:
    """Appends to lists and reads of them, several in a transaction."""

    async def step(process: int) -> int:
        recorder, tx = load.recorder, SimTransaction(client, optimistic=rng.random() < 0.5, timeout_ns=TIMEOUT_NS)
        generation = load.done // (LISTS * LIST_MAX * 4)
        keys = [f"l{generation}-{i}" for i in rng.sample(range(LISTS), rng.randrange(1, 4))]
        ops: list[Append | Read] = [Append(k, load.element()) if rng.random() < 0.6 else Read(k) for k in keys]
        recorder.begin("lists", process, Transaction(tuple(ops)))
        try:
            found = await tx.get("lists", [k.encode() for k in keys])
            told: list[Append | Read] = []
            for op in ops:
                held = found[op.key.encode()]
                if isinstance(op, Append):
                    more = str(op.value).encode()
                    await tx.put("lists", {op.key.encode(): held + b" " + more if held else more})
                    told.append(op)
                else:
                    told.append(Read(op.key, tuple(int(v) for v in held.split()) if held else ()))
            await tx.commit()
            recorder.end(process, "ok", Transaction(tuple(told)))
        except errors.Error as error:
            process = recorder.failed(process, error)
            await tx.rollback()
        return process

    return step


def ring_of(load: Load, client: Client, rng: Random) -> Callable[[int], Awaitable[int]]:
    """Rotations of three neighbours of a ring, and reads of the whole ring."""

    async def step(process: int) -> int:
        recorder, tx = load.recorder, SimTransaction(client, optimistic=rng.random() < 0.5, timeout_ns=TIMEOUT_NS)
        try:
            if rng.random() < 0.3:
                recorder.begin("ring", process, ReadRing())
                found = await tx.get("ring", [n.encode() for n in NODES_OF_RING])
                await tx.commit()
                told = {k.decode(): v.decode() for k, v in found.items() if v is not None}
                recorder.end(process, "ok", ReadRing(told))
                return process
            first = rng.choice(NODES_OF_RING).encode()
            recorder.begin("ring", process, Rotate((first.decode(),)))
            chain = [first]
            for _ in range(3):
                found = await tx.get("ring", [chain[-1]])
                chain.append(found[chain[-1]] or b"")
            a, b, c, d = chain
            await tx.put("ring", {a: c, c: b, b: d})  # a > b > c > d becomes a > c > b > d
            await tx.commit()
            recorder.end(process, "ok", Rotate((a.decode(), b.decode(), c.decode())))
        except errors.Error as error:
            process = recorder.failed(process, error)
            await tx.rollback()
        return process

    return step


# Single operations.


def registers_of(load: Load, client: Client, rng: Random) -> Callable[[int], Awaitable[int]]:
    """Gets, puts, deletes and compare-and-sets of a few keys; each get is an observation of a version, too."""

    async def step(process: int) -> int:
        recorder = load.recorder
        key = rng.choice(REGISTERS)
        kind = rng.random()
        try:
            if kind < 0.45:
                recorder.begin("registers", process, Get(key))
                call = await client.call(GetCall("registers", [key.encode()]), timeout_ns=TIMEOUT_NS)
                epoch, counter, held = call.values[0]
                value = int(held) if held is not None else None
                got = recorder.end(process, "ok", Get(key, value))
                if value is not None:
                    recorder.also("versions", got, Observe(key, Stamp(epoch, counter), value))
            elif kind < 0.8:
                new = load.element() if rng.random() < 0.9 else None
                recorder.begin("registers", process, Put(key, new))
                data = str(new).encode() if new is not None else None
                await client.call(PutCall(client.new_tx(), "registers", [key.encode()], [data]), timeout_ns=TIMEOUT_NS)
                recorder.end(process, "ok")
            else:
                read = await client.call(GetCall("registers", [key.encode()]), timeout_ns=TIMEOUT_NS)
                old, new = read.values[0][2], load.element()
                if old is None:
                    return process
                recorder.begin("registers", process, CompareAndSet(key, int(old), new))
                swap = SwapCall(client.new_tx(), "registers", key.encode(), "equals", old, str(new).encode())
                await client.call(swap, timeout_ns=TIMEOUT_NS)
                recorder.end(process, "ok", CompareAndSet(key, int(old), new, swap.applied))
        except errors.Error as error:
            process = recorder.failed(process, error) if recorder.is_open(process) else process
        return process

    return step


def set_of(load: Load, client: Client, rng: Random) -> Callable[[int], Awaitable[int]]:
    """Elements of a set that lies in one partition, and scans of it."""

    async def step(process: int) -> int:
        recorder = load.recorder
        try:
            if rng.random() < 0.8:
                element = load.element()
                recorder.begin("set", process, Add(element))
                call = PutCall(client.new_tx(), "set", [b"{set}%08d" % element], [b"-"])
                await client.call(call, timeout_ns=TIMEOUT_NS)
                recorder.end(process, "ok")
            else:
                recorder.begin("set", process, ReadSet())
                found = ScanCall("set", b"{set}", None, 10_000)
                await client.call(found, timeout_ns=TIMEOUT_NS)
                if found.next_start is not None:
                    recorder.end(process, "fail")  # two pages are two moments
                else:
                    recorder.end(process, "ok", ReadSet(tuple(int(key[5:]) for key, _ in found.rows)))
        except errors.Error as error:
            process = recorder.failed(process, error)
        return process

    return step


WORKLOADS = {"bank": bank_of, "lists": lists_of, "ring": ring_of, "registers": registers_of, "set": set_of}


# In the end.


async def read_everything(load: Load, client: Client) -> None:
    """When nothing is written any more: scans of all namespaces, and gets of all that they show."""
    recorder = load.recorder
    process = recorder.process()
    for namespace in ("bank", "lists", "ring", "registers"):
        rows: list[tuple[bytes, bytes]] = []
        start: bytes | None = b"\0"
        recorder.begin("scan", process, Scan(namespace, namespace + "~"))
        while start is not None:
            page = await client.call(ScanCall(namespace, start, None, 200), timeout_ns=10 * TIMEOUT_NS)
            rows += page.rows
            start = page.next_start
        numbers = {value: at for at, value in enumerate(sorted({value for _, value in rows}))}
        named = tuple((f"{namespace}{key.decode()}", numbers[value]) for key, value in rows)
        recorder.end(process, "ok", Scan(namespace, namespace + "~", named))
        for key, _ in rows:
            recorder.begin("scan", process, Get(f"{namespace}{key.decode()}"))
            call = await client.call(GetCall(namespace, [key]), timeout_ns=10 * TIMEOUT_NS)
            held = call.values[0][2]
            recorder.end(
                process, "ok", Get(f"{namespace}{key.decode()}", numbers.get(held, -1) if held is not None else None)
            )
        if namespace == "lists":
            recorder.begin("lists", process, Transaction(()))
            told = tuple(Read(key.decode(), tuple(map(int, value.split()))) for key, value in rows)
            recorder.end(process, "ok", Transaction(told))
    recorder.begin("set", process, ReadSet())
    elements: list[int] = []
    start = b"{set}"
    while start is not None:
        page = await client.call(ScanCall("set", start, None, 2_000), timeout_ns=10 * TIMEOUT_NS)
        elements += [int(key[5:]) for key, _ in page.rows]
        start = page.next_start
    recorder.end(process, "ok", ReadSet(tuple(elements)))
    for workload in (bank_of, ring_of):
        quiet = _Always()
        await workload(load, client, quiet)(process)


class _Always(Random):
    """Draws that make a workload read."""

    def random(self) -> float:
        """The least there is."""
        return 0.0


def judge(recorder: Recorder, quiet_from: int) -> dict[str, list[Anomaly]]:
    """What each history has against the engine; workloads without anomalies are left out."""
    verdicts: dict[str, Sequence[Anomaly]] = {
        "bank": bank.check(BALANCE * len(ACCOUNTS), recorder.history("bank"), accounts=ACCOUNTS),
        "lists": list_append.check(recorder.history("lists")),
        "ring": ring.check(NODES_OF_RING, recorder.history("ring")),
        "registers": register.check(recorder.history("registers")),
        "versions": monotonic.check(recorder.history("versions")),
        "set": sets.check(recorder.history("set")),
        "scan": scan.check(recorder.history("scan"), quiet_from=quiet_from),
    }
    return {name: _accusing(found) for name, found in verdicts.items() if _accusing(found)}


def _accusing(found: Iterable[Anomaly]) -> list[Anomaly]:
    return [anomaly for anomaly in found if anomaly.kind != "undecided"]
