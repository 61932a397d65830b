"""A cluster's directories, and what those who damage copies of them do it with. The damages are `tests.support.damages`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from engine import aio
from engine.offline.directory import read_directory
from engine.state.store import Entry
from rebalance import table as topologies
from tests.support.directories import append, replace
from wal import records as r
from wal.ids import Fragment, Version, partition_of

PARTITIONS = 16
IN_DOUBT = b"in doubt for now"
NOW_MS = 4_000_000_000_000
HOUR_MS = 3_600_000
YEAR_MS = 365 * 86_400_000
ALL = ("n1", "n2", "n3")

Told: TypeAlias = tuple[str, str, str | None, list[str]]
"""What is found: kind, where, key, and on whom."""


async def story(database: aio.Database) -> None:
    """Puts, deletes, and transactions over several partitions. What is damaged later is settled by what follows it."""
    acc, bank = database.namespace("acc"), database.namespace("bank")
    await acc.put_many({b"k%d" % at: b"value of k%d." % at for at in range(400)})
    for at in range(0, 100, 5):
        await acc.delete(b"k%d" % at)
    for at in range(30):
        async with database.transaction() as tx:
            await tx.namespace("acc").put(b"k%d" % (at % 7), b"tx %d" % at)
            await tx.namespace("bank").put(b"b%d" % at, bytes(30))
            await tx.namespace("bank").put(b"c%d" % (at % 3), b"total %d" % at)
    for namespace in (acc, bank):
        await namespace.put_many({b"z%d" % at: b"" for at in range(100)})


class Damage(NamedTuple):
    """What is done to copies, what must be found of it and nothing else, and the exit code."""

    do: Callable[[Path], None]
    found: list[Told]
    exit_code: int = 1


def fragment_of(key: bytes, namespace: str = "acc") -> Fragment:
    """The fragment of a key."""
    return (namespace, partition_of(key, PARTITIONS))


def told(kind: str, key: bytes, *on: str, namespace: str = "acc") -> Told:
    """What is found about a key."""
    return kind, "{}/{}".format(*fragment_of(key, namespace)), key.decode(), list(on)


def told_of_fragment(kind: str, key: bytes, *on: str) -> Told:
    """What is found about the fragment of a key."""
    return kind, "{}/{}".format(*fragment_of(key)), None, list(on)


def told_of_partition(kind: str, key: bytes, *on: str) -> Told:
    """What is found about the partition of a key."""
    return kind, f"partition {fragment_of(key)[1]}", None, list(on)


def unreadable(*nodes: str) -> list[Told]:
    """What is found about whole directories."""
    return [("UNREADABLE", "-", None, [node]) for node in nodes]


def beside(key: bytes, at: int = 1) -> bytes:
    """Another key of its fragment; the second one where `at` is 2."""
    others = (b"k%d" % n for n in range(303, 400))
    return [other for other in others if other != key and fragment_of(other) == fragment_of(key)][at - 1]


def entry_of(directory: Path, key: bytes, namespace: str = "acc") -> Entry:
    """What a copy has of a key."""
    with read_directory(directory) as state:
        return dict(state.rows(fragment_of(key, namespace), lambda _key, _what: None))[key]


def put_row(directory: Path, key: bytes, entry: Entry | None, namespace: str = "acc") -> None:
    """A row of the store becomes another one, with a right checksum; None: it goes."""
    replace(directory, fragment_of(key, namespace), {key: entry})


def forge(directory: Path, key: bytes, namespace: str = "acc") -> None:
    """A row gets another value under the same version, with a right checksum."""
    entry = entry_of(directory, key, namespace)
    put_row(directory, key, msgspec.structs.replace(entry, value=b"forged"), namespace)


def counter_of(directory: Path, name: Fragment) -> tuple[int, int]:
    """The LWM of a copy, and its epoch."""
    with read_directory(directory) as state:
        return state.fragments[name].counter.lwm, state.partitions[name[1]].epoch


def write(
    root: Path,
    nodes: tuple[str, ...],
    key: bytes,
    value: bytes | None,
    *,
    skip: int = 0,
    stable: int = 0,
    now_ms: int = NOW_MS,
) -> None:
    """These nodes log one update more, so many counters above their LWM, and an hour later they say something else."""
    for node in nodes:
        name = fragment_of(key)
        lwm, epoch = counter_of(root / node, name)
        update = r.Write(*name, epoch, lwm + skip, keys=[key], values=[value], stable=stable)
        append(root / node, [r.Update([update])], now_ms=now_ms)
        append(root / node, [r.Checkpoint(0)], now_ms=now_ms + HOUR_MS)


def adopt(directory: Path, *, owners: tuple[str, ...], in_sync: tuple[str, ...], lost: bool = False) -> None:
    """The node learned of a newer map, in which all partitions are placed so."""
    with read_directory(directory) as state:
        topology = state.topology
    assert topology is not None
    replaced = msgspec.structs.replace
    placements = tuple(replaced(p, owners=owners, in_sync=in_sync, lost=lost) for p in topology.placements)
    version = Version(topology.version[0] + 1, 0)
    newer = replaced(topology, version=version, placements=placements)
    append(directory, [r.Committed(version, topologies.encode(newer))], now_ms=NOW_MS)
