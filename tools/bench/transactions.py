"""The figures of transactions that need few messages: what each takes of the processor, over all nodes and the client.

Processor time survives a busy machine, as a rate does not; the rate stands beside it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from engine import Put, aio
from tools.bench.cluster import Operation, rate, two_partitions
from tools.bench.figures import VALUE_BYTES, Measured, Setting
from wal.ids import partition_of

VALUE = b"v" * VALUE_BYTES
READ = 10
SETS = 100
"""So many sets of keys are read in turn."""


async def one_shot(setting: Setting, figure: str, clients: int, goal: float) -> list[Measured]:
    """Two new keys in two partitions, said in one request."""

    async def transact(namespace: aio.Namespace[bytes, bytes], number: int) -> None:
        one, other = two_partitions(namespace.database, number)
        await namespace.database.transact([Put(namespace, one, VALUE), Put(namespace, other, VALUE)])

    what = f"writes of two keys in two partitions, each one request, {clients:,} clients"
    return [await _cost(setting, figure, clients, transact, what=what, updates=2, goal=goal)]


async def one_partition(setting: Setting, figure: str, clients: int, goal: float) -> list[Measured]:
    """Two new keys in one partition, which are locked and read before they are put."""

    async def transact(namespace: aio.Namespace[bytes, bytes], number: int) -> None:
        keys = [b"{%08d}-%d" % (number, at) for at in range(2)]
        async with namespace.database.transaction() as tx:
            inside = tx.namespace(namespace)
            await inside.get_many(keys)
            for key in keys:
                await inside.put(key, VALUE)

    what = f"transactions that read and write two keys of one partition, {clients:,} clients"
    return [await _cost(setting, figure, clients, transact, what=what, updates=2, goal=goal)]


async def read_only(setting: Setting, figure: str, clients: int, goal: float) -> list[Measured]:
    """Ten keys of ten partitions, read at one moment. They lie in a namespace of their own, where no update is counted."""
    sets: list[list[bytes]] = []

    async def put(database: aio.Database) -> None:
        topology = database.session.router.topology
        assert topology is not None, "a connected client has the table"
        for at in range(SETS):
            keys: dict[int, bytes] = {}
            for number in range(100 * READ):
                key = b"row-%d-%d" % (at, number)
                keys.setdefault(partition_of(key, topology.partitions), key)
            sets.append(list(keys.values())[:READ])
        await database.namespace("rows").put_many(dict.fromkeys((key for keys in sets for key in keys), VALUE))

    async def look(namespace: aio.Namespace[bytes, bytes], number: int) -> None:
        keys = sets[number % SETS]
        async with namespace.database.snapshot() as snapshot:
            found = await snapshot.namespace("rows").get_many(keys)
        assert len(found) == READ, f"expected {READ} rows, found {len(found)}"

    what = f"snapshots of which {READ} keys of {READ} partitions are read, {clients:,} clients"
    return [await _cost(setting, figure, clients, look, what=what, updates=0, goal=goal, before=put)]


async def _cost(
    setting: Setting,
    figure: str,
    clients: int,
    operation: Operation,
    *,
    what: str,
    updates: int,
    goal: float,
    before: Callable[[aio.Database], Awaitable[None]] | None = None,
) -> Measured:
    """What an operation takes of the processor, nodes and client together, as a figure that is to be small."""
    found = await rate(setting, figure, clients, operation, updates=updates, what=what, unit="tx/s", goal=0, before=before)
    both = sum(found.parts.values())
    parts = {"tx/s": found.value, **found.parts}
    return replace(found, value=round(both, 1), unit="us", goal=goal, at_most=True, parts=parts)
