"""A cluster's directories and what can be done to copies of them, each with what a reconciliation must find.

The tests of the local engine and those of Spark tell the same stories.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine import aio
from engine.offline import read_directory
from engine.store import Entry
from tests.support.directories import append, flip, lose, replace
from wal import list_segments
from wal import records as r
from wal.ids import Fragment, partition_of

PARTITIONS = 16
IN_DOUBT = b"in doubt for now"
NOW_MS = 4_000_000_000_000
YEAR_MS = 365 * 86_400_000


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
    """What is done to copies, what must be found of it (kind, where, key, on), and the exit code."""

    do: Callable[[Path], None]
    found: list[tuple[str, str, str | None, list[str]]]
    exit_code: int = 1


def fragment_of(key: bytes) -> Fragment:
    """The fragment of a key in the namespace `acc`."""
    return ("acc", partition_of(key, PARTITIONS))


def _where(key: bytes) -> str:
    return "{}/{}".format(*fragment_of(key))


def _entry(directory: Path, key: bytes) -> Entry:
    with read_directory(directory) as state:
        return dict(state.rows(fragment_of(key), lambda _key, _what: None))[key]


def _replace(directory: Path, key: bytes, entry: Entry | None) -> None:
    replace(directory, fragment_of(key), {key: entry})


def _nothing(root: Path) -> None:
    """The copies agree."""


def _flip(root: Path) -> None:
    assert flip(root / "n2", b"value of k301."), "the value is not in the store"


def _forge(root: Path) -> None:
    _replace(root / "n1", b"k302", msgspec.structs.replace(_entry(root / "n1", b"k302"), value=b"forged"))


def _several(root: Path) -> None:
    _replace(root / "n1", b"k310", None)
    _replace(root / "n2", b"k311", Entry(1, 1, b"older"))
    _replace(root / "n3", b"k312", msgspec.structs.replace(_entry(root / "n3", b"k312"), value=None))
    _replace(root / "n3", b"nowhere", Entry(1, 1, b"else"))


def _lose(root: Path) -> None:
    for node in ("n1", "n2", "n3"):
        lose(root / node, fragment_of(b"k313"), b"k313")


def _vote(root: Path) -> None:
    """Two nodes voted for a transaction, another write came after it, and then nothing for a year."""
    namespace, number = name = fragment_of(b"k320")
    for node in ("n1", "n2"):
        with read_directory(root / node) as state:
            lwm, epoch = state.fragments[name].counter.lwm, state.partitions[number].epoch
        held = r.Write(namespace, number, epoch, lwm, [b"k320"], [b"held"], 0, IN_DOUBT)
        above = r.Write(namespace, number, epoch, lwm + 1, [b"k321"], [b"above"], 0)
        prepare = r.Prepare(IN_DOUBT, number, epoch, [held], [], [number, 3], 3)
        append(root / node, [prepare, r.Update([above])], now_ms=NOW_MS)
        append(root / node, [r.Checkpoint(0)], now_ms=NOW_MS + YEAR_MS)


def _just_voted(root: Path) -> None:
    """The same, one second before the end of the log."""
    _vote(root)
    for node in ("n1", "n2", "n3"):
        append(root / node, [r.Checkpoint(0)], now_ms=NOW_MS + 1000)


def _damage_log(root: Path) -> None:
    segment = root / "n3" / "wal" / list_segments(root / "n3" / "wal")[-1].name
    data = bytearray(segment.read_bytes())
    data[300] ^= 1
    segment.write_bytes(data)


def _cut_short(root: Path) -> None:
    with (root / "n2" / "store" / "data.mdb").open("r+b") as file:
        file.truncate(20_000)


def _clash(root: Path) -> None:
    namespace, number = name = fragment_of(b"k330")
    with read_directory(root / "n2") as state:
        lwm, epoch = state.fragments[name].counter.lwm, state.partitions[number].epoch
    overlap = r.Write(namespace, number, epoch, lwm - 1, [b"x", b"y"], [b"", b""])
    append(root / "n2", [r.Update([overlap])], now_ms=NOW_MS)


def _leave_out(root: Path) -> None:
    shutil.rmtree(root / "n3")


_VOTED = f"partition {fragment_of(b'k320')[1]}"

DAMAGES = {
    "nothing": Damage(_nothing, [], 0),
    "a flipped bit": Damage(_flip, [("UNREADABLE", _where(b"k301"), "k301", ["n2"])]),
    "a forged value": Damage(_forge, [("VALUE_MISMATCH", _where(b"k302"), "k302", ["n1"])]),
    "several rows": Damage(
        _several,
        [
            ("MISSING_ON", _where(b"k310"), "k310", ["n1"]),
            ("VERSION_MISMATCH", _where(b"k311"), "k311", ["n2"]),
            ("TOMBSTONE_MISMATCH", _where(b"k312"), "k312", ["n3"]),
            ("EXTRA_ON", _where(b"nowhere"), "nowhere", ["n3"]),
        ],
    ),
    "a row that no copy has any more": Damage(
        _lose, [("CONTENTS_MISMATCH", _where(b"k313"), None, [node]) for node in ("n1", "n2", "n3")]
    ),
    "a transaction in doubt": Damage(
        _vote,
        [
            ("TX_UNRESOLVED", _VOTED, None, ["n1", "n2"]),
            ("COUNTER_GAP", _where(b"k320"), None, ["n1", "n2"]),
        ],
    ),
    "a damaged log": Damage(_damage_log, [("UNREADABLE", "-", None, ["n3"])], 3),
    "a store cut short": Damage(_cut_short, [("UNREADABLE", "-", None, ["n2"])], 3),
    "two histories": Damage(_clash, [("UNREADABLE", f"partition {fragment_of(b'k330')[1]}", None, ["n2"])], 3),
    "a node left out": Damage(_leave_out, [], 3),
}
