"""Transactions over several keys, nodes and partitions: the bank, the lists, the rooms and the ring.

The bank would notice half a transfer, the lists an order that no serial execution explains, the ring half a rotation. The
rooms are lists, too, but of rows in a range: who adds to one has scanned it, and so must know of all who came before.
Some transfers stop after the votes: the client asks what became of them, or goes on, or is never heard of again.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from engine import errors
from engine.client.modes import Concurrency
from tests.sim.checkers.history import Append, Outcome, Read, ReadBalances, ReadRing, Rotate, Transaction, Transfer
from tests.sim.clients import Client
from tests.sim.network import MS
from tests.sim.transactions import SimTransaction
from tests.sim.workloads.load import ACCOUNTS, NODES_OF_RING, Load, Step, begin, failed

STOPPING = 0.08
"""So many transfers stop after the votes."""
LISTS = 5
ROOMS = 3
LIST_MAX = 25
"""A list that is so long is retired, for the history grows with the square of its length."""


def bank_of(load: Load, client: Client, rng: Random) -> Step:
    """Transfers between accounts, and reads of all of them."""
    keys = [a.encode() for a in ACCOUNTS]

    async def step(process: int) -> int:
        recorder, tx = load.recorder, begin(client, rng)
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
            if rng.random() < STOPPING:
                return await _stop_after_the_votes(tx, load, process, rng)
            await tx.commit()
            recorder.end(process, "ok")
        except errors.Error as error:
            process = await failed(tx, load, process, rng, error)
        return process

    return step


async def _stop_after_the_votes(tx: SimTransaction, load: Load, process: int, rng: Random) -> int:
    """Prepare only; then go on, ask, give it up, or leave it to the engine to find out that nobody will come.

    Whoever did not ask to commit can be sure that nothing commits it.
    """
    recorder, then = load.recorder, rng.random()
    outcome: Outcome = "fail"
    try:
        await tx.prepare()
        await load.pause(tx.client, rng.choice([1, 300, 3_000]) * MS)
        if then < 0.3:
            outcome = "info"
            await tx.commit()
            outcome = "ok"
        elif then < 0.6:
            if await tx.status() == "committed":
                outcome = "ok"
        elif then < 0.8:
            await tx.rollback()
    except errors.Conflict as error:
        recorder.told(error)
        outcome = "fail"
    except errors.Error as error:
        recorder.told(error)
    recorder.end(process, outcome)
    return recorder.process() if outcome == "info" else process


def lists_of(load: Load, client: Client, rng: Random) -> Step:
    """Appends to lists and reads of them, several in a transaction. What an aborted one read is judged read by read."""

    async def step(process: int) -> int:
        recorder, tx = load.recorder, begin(client, rng)
        ops = drawn_lists(load, rng)
        keys = [op.key for op in ops]
        recorder.begin("lists", process, Transaction(tuple(ops)))
        attempt = load.rivals.begin(tx.tx, keys)
        reads: list[tuple[int, int, Read]] = []
        try:
            found: dict[bytes, bytes | None] = {}
            for key in keys:
                since = client.world.now
                load.rivals.asks(attempt)
                found |= await tx.get("lists", [key.encode()])
                reads.append((since, client.world.now, Read(key, elements_of(found[key.encode()]))))
            told: list[Append | Read] = []
            for op in ops:
                told.append(await carry_out(tx, op, found[op.key.encode()]))
            load.rivals.asks(attempt)
            await tx.commit()
            load.rivals.committed(attempt)
            recorder.end(process, "ok", Transaction(tuple(told)))
        except errors.Error as error:
            if isinstance(error, errors.Conflict) and tx.optimistic:
                load.rivals.refused(attempt)
            elif not error.maybe_committed:
                load.rivals.failed(attempt)
            for since, until, read in reads:
                recorder.read("lists", since, until, Transaction((read,)))
            process = await failed(tx, load, process, rng, error)
        return process

    return step


def drawn_lists(load: Load, rng: Random) -> list[Append | Read]:
    """What is to be done with some of the lists."""
    keys = [f"l{_generation(load)}-{i}" for i in rng.sample(range(LISTS), rng.randrange(1, 4))]
    return [Append(k, load.element()) if rng.random() < 0.6 else Read(k) for k in keys]


def list_names(load: Load) -> list[str]:
    """All lists that there may be."""
    return [f"l{generation}-{i}" for generation in range(_generation(load) + 1) for i in range(LISTS)]


def room_names(load: Load) -> list[str]:
    """All rooms that there may be."""
    return [f"r{season}-{i}" for season in range(_season(load) + 1) for i in range(ROOMS)]


def _season(load: Load) -> int:
    return load.done // (ROOMS * LIST_MAX * 4)


def _generation(load: Load) -> int:
    return load.done // (LISTS * LIST_MAX * 4)


async def carry_out(tx: SimTransaction, op: Append | Read, held: bytes | None) -> Append | Read:
    """Append to a list of which `held` is kept, or read it; the operation, with what was read."""
    if isinstance(op, Read):
        return Read(op.key, elements_of(held))
    more = str(op.value).encode()
    await tx.put("lists", {op.key.encode(): held + b" " + more if held else more})
    return op


def elements_of(held: bytes | None) -> tuple[int, ...]:
    """What a list has, as it is kept."""
    return tuple(int(v) for v in held.split()) if held else ()


def rooms_of(load: Load, client: Client, rng: Random) -> Step:
    """Bookings of rooms, each a row of its own in the room's range, and scans of rooms, several in a transaction.

    A booking says in which place it found itself. Two that did not see each other have the same one, and then no order of
    the two explains what either of them has read.
    """

    async def step(process: int) -> int:
        recorder, tx = load.recorder, begin(client, rng)
        rooms = [f"r{_season(load)}-{i}" for i in rng.sample(range(ROOMS), rng.randrange(1, ROOMS + 1))]
        booked = {room: load.element() for room in rooms if rng.random() < 0.5}
        recorder.begin(
            "rooms", process, Transaction(tuple(op for room in rooms for op in _ops(room, None, booked.get(room))))
        )
        told: list[Append | Read] = []
        try:
            if tx.concurrency is Concurrency.OPTIMISTIC and rng.random() < 0.5:
                await tx.begin_at_a_cut()
            for room in rooms:
                rows = await tx.scan("rooms", f"{room}/".encode(), f"{room}0".encode(), page_rows=rng.choice([3, 100]))
                told += _ops(room, tuple(room_rows(rows)), booked.get(room))
                if room in booked:
                    await tx.put("rooms", {f"{room}/{booked[room]}".encode(): str(len(rows)).encode()})
            await tx.commit()
            recorder.end(process, "ok", Transaction(tuple(told)))
        except errors.Error as error:
            process = await failed(tx, load, process, rng, error)
        return process

    return step


def _ops(room: str, found: tuple[int, ...] | None, booked: int | None) -> list[Append | Read]:
    read = Read(room, found)
    return [read] if booked is None else [read, Append(room, booked)]


def room_rows(rows: Mapping[bytes, bytes]) -> list[int]:
    """The bookings of one room, in the order of their places."""
    return [int(key.partition(b"/")[2]) for key, _ in sorted(rows.items(), key=lambda row: (int(row[1]), row[0]))]


def ring_of(load: Load, client: Client, rng: Random) -> Step:
    """Rotations of three neighbours of a ring, and reads of the whole ring."""

    async def step(process: int) -> int:
        recorder, tx = load.recorder, begin(client, rng)
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
            process = await failed(tx, load, process, rng, error)
        return process

    return step
