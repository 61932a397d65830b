"""Cuts of the whole database, taken and read at while everything goes wrong.

Each cut is judged as a transaction that only read, and that did so between the moment at which it was asked for and the
one at which it was handed out, however much later it was read: all that was acknowledged before is in it, and nothing that
began after. It is read twice, by keys and by scans, at different speeds, and tells the same.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from engine import errors
from engine.client.calls import GetCall
from engine.client.scans import CountCall, ScanCall
from rebalance.table import Topology
from tests.sim.checkers.history import Get, Read, ReadBalances, Transaction
from tests.sim.clients import Client
from tests.sim.network import MS
from tests.sim.violation import About, Violation
from tests.sim.workloads.load import TIMEOUT_NS, Load, Step
from tests.sim.workloads.single import BATCHED, REGISTERS
from tests.sim.workloads.transactions import list_names, room_names, room_rows
from wal.ids import Era, Namespace

READ = ("bank", "lists", "rooms", "registers", "batches", "rows")
LONG, LONG_MS = 0.03, 4_000
"""So many are read for longer than clients go without saying that they live."""
Rows = dict[bytes, bytes]


def cuts_of(load: Load, client: Client, rng: Random) -> Step:
    """Take a cut, and read all of some namespaces at it, twice."""

    async def step(process: int) -> int:
        recorder, world = load.recorder, client.world
        asked = world.now
        try:
            async with client.database.snapshot() as snapshot:
                handed = world.now
                namespaces = rng.sample(READ, 3)
                first: dict[Namespace, Rows] = {}
                for namespace in namespaces:
                    first[namespace] = await scanned(client, namespace, snapshot.cut, rng.choice([2, 10, 500]))
                    await load.pause(client, (LONG_MS if rng.random() < LONG else rng.choice([1, 50, 700])) * MS)
                for namespace in reversed(namespaces):
                    await _again(client, namespace, snapshot.cut, first[namespace], rng)
        except errors.Error as error:
            recorder.told(error)
            return process
        _record(load, asked, handed, first)
        return process

    return step


def topology_of(client: Client) -> Callable[[], Topology | None]:
    """The newest map that a client has seen."""
    return lambda: client.router.topology


async def scanned(client: Client, namespace: Namespace, cut: Era, limit: int, *, reverse: bool = False) -> Rows:
    """All rows of a namespace at a cut, from either end."""
    rows: Rows = {}
    left: tuple[bytes, bytes | None] | None = (b"\0", None)
    while left is not None:
        page = await client.call(ScanCall(namespace, *left, limit, cut=cut, reverse=reverse), timeout_ns=TIMEOUT_NS)
        keys = [key for key, _ in page.rows]
        if keys != sorted(keys, reverse=reverse):
            raise Violation("cut", f"{namespace} at {cut}: a page is out of order: {keys}", About(keys=tuple(keys)))
        rows |= dict(page.rows)
        left = page.following
    return rows


async def _again(client: Client, namespace: Namespace, cut: Era, first: Rows, rng: Random) -> None:
    """Read what was found once more, and a few keys that may have come since; raise Violation if it is another."""
    counted = await client.call(CountCall(namespace, cut=cut), timeout_ns=TIMEOUT_NS)
    if counted.counted != len(first):
        raise Violation("cut", f"{namespace} at {cut} has {len(first)} rows, and {counted.counted} were counted")
    if rng.random() < 0.5:
        second = await scanned(client, namespace, cut, rng.choice([3, 1_000]), reverse=rng.random() < 0.5)
    else:
        now = await client.call(ScanCall(namespace, b"\0", None, 1_000), timeout_ns=TIMEOUT_NS)
        keys = list(dict.fromkeys([*first, *(key for key, _ in now.rows)]))
        if not keys:
            return
        found = await client.call(GetCall(namespace, keys, cut=cut), timeout_ns=TIMEOUT_NS)
        second = {key: value for key, (_, _, value) in zip(keys, found.values, strict=True) if value is not None}
    differ = sorted(key for key in {**first, **second} if first.get(key) != second.get(key))
    if differ:
        raise Violation(
            "cut",
            f"{namespace} at {cut} was read twice: {[(key, first.get(key), second.get(key)) for key in differ[:4]]}",
            About(keys=tuple(differ)),
        )


def _record(load: Load, asked: int, handed: int, found: dict[Namespace, Rows]) -> None:
    """What was read, as of the time in which the cut was taken."""
    recorder = load.recorder
    recorder.read("cuts", asked, handed, Transaction(()))  # it was, for whoever counts what was done
    for namespace, rows in found.items():
        match namespace:
            case "bank":
                recorder.read("bank", asked, handed, ReadBalances({k.decode(): int(v) for k, v in rows.items()}))
            case "lists":
                held = {key.decode(): tuple(map(int, value.split())) for key, value in rows.items()}
                told = tuple(Read(key, held.get(key, ())) for key in dict.fromkeys([*list_names(load), *held]))
                recorder.read("lists", asked, handed, Transaction(told))
            case "rooms":
                booked = {room: _of_room(rows, room.encode()) for room in room_names(load)}
                rooms = tuple(Read(room, tuple(room_rows(of))) for room, of in booked.items())
                recorder.read("rooms", asked, handed, Transaction(rooms))
            case "registers" | "batches":
                for name in REGISTERS if namespace == "registers" else BATCHED:
                    value = rows.get(name.encode())
                    recorder.read(namespace, asked, handed, Get(name, int(value) if value is not None else None))
            case _:
                pass


def _of_room(rows: Rows, room: bytes) -> Rows:
    return {key: value for key, value in rows.items() if key.partition(b"/")[0] == room}
