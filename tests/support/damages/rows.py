"""Damages of rows, in the stores of stopped nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import msgspec

from engine.offline.directory import read_directory
from engine.state.store import Entry
from tests.support.directories import append, flip, lose, replace
from tests.support.reconciled import (
    ALL,
    NOW_MS,
    PARTITIONS,
    Damage,
    beside,
    counter_of,
    entry_of,
    forge,
    fragment_of,
    put_row,
    told,
    told_of_fragment,
)
from wal import records as r
from wal.ids import Fragment

Do: TypeAlias = Callable[[Path], None]

KEY, OTHER = b"k302", beside(b"k302")
DELETED = b"k15"
"""A key that was deleted, and of whose delete nothing is left but in the logs."""
OVERWRITTEN = b"k3"
OLD = Entry(1, 1, b"older")
ELSEWHERE: Fragment = ("acc", (fragment_of(b"k344")[1] + 1) % PARTITIONS)
"""Where `k344` does not belong."""


def _flip(*nodes: str) -> Do:
    """A bit of a value is another one."""

    def do(root: Path) -> None:
        for node in nodes:
            assert flip(root / node, b"value of k301."), "the value is not in the store"

    return do


def _forge(*nodes: str, key: bytes = KEY, namespace: str = "acc") -> Do:
    """A value is another one, with a right checksum."""

    def do(root: Path) -> None:
        for node in nodes:
            forge(root / node, key, namespace)

    return do


def _put(key: bytes, entry: Entry | None, *nodes: str) -> Do:
    """These have this of a key, with a right checksum."""

    def do(root: Path) -> None:
        for node in nodes:
            put_row(root / node, key, entry)

    return do


def _delete(*nodes: str, key: bytes = KEY) -> Do:
    """These have a tombstone in the place of a row, under its version."""

    def do(root: Path) -> None:
        for node in nodes:
            put_row(root / node, key, msgspec.structs.replace(entry_of(root / node, key), value=None))

    return do


def _lose(*nodes: str, key: bytes = b"k313") -> Do:
    """A row is gone behind the store's back."""

    def do(root: Path) -> None:
        for node in nodes:
            lose(root / node, fragment_of(key), key)

    return do


def _several(root: Path) -> None:
    put_row(root / "n1", b"k310", None)
    put_row(root / "n2", b"k311", OLD)
    _delete("n3", key=b"k312")(root)
    put_row(root / "n3", b"nowhere", Entry(1, 1, b"else"))


def _in_three_ways(root: Path) -> None:
    put_row(root / "n1", KEY, None)
    forge(root / "n2", KEY)
    put_row(root / "n3", KEY, OLD)


def _two_values(root: Path) -> None:
    for node, value in (("n1", b"one"), ("n2", b"another")):
        put_row(root / node, KEY, msgspec.structs.replace(entry_of(root / node, KEY), value=value))


def _swap(root: Path) -> None:
    """Two keys have each other's value."""
    entries = {key: entry_of(root / "n2", key) for key in (KEY, OTHER)}
    for key, other in ((KEY, OTHER), (OTHER, KEY)):
        put_row(root / "n2", key, msgspec.structs.replace(entries[key], value=entries[other].value))


def _beyond(root: Path) -> None:
    """A row has a version that no log tells of, below what the copy claims."""
    lwm, epoch = counter_of(root / "n2", fragment_of(KEY))
    put_row(root / "n2", KEY, Entry(epoch, lwm, b"newer"))


def _far_beyond(*nodes: str) -> Do:
    """A row has a version that no copy has ever counted to."""
    return _put(KEY, Entry(1, 10_000, b"newer"), *nodes)


def _misplace(root: Path) -> None:
    """All copies have a row in a partition that its key does not hash to, and their logs say so."""
    for node in ALL:
        lwm, epoch = counter_of(root / node, ELSEWHERE)
        update = r.Update([r.Write(*ELSEWHERE, epoch, lwm, keys=[b"k344"], values=[b"here"])])
        append(root / node, [update], now_ms=NOW_MS)


def _misplace_one(root: Path) -> None:
    """One store has such a row, and no log tells of it."""
    replace(root / "n2", ELSEWHERE, {b"k344": Entry(1, 1, b"here")})


def _keys_of(directory: Path, name: Fragment) -> list[bytes]:
    with read_directory(directory) as state:
        return [key for key, _ in state.rows(name, lambda _key, _what: None)]


def _empty(root: Path) -> None:
    """Of a fragment no row is left in one store, and its counters are."""
    name = fragment_of(b"z1", "bank")
    replace(root / "n2", name, dict.fromkeys(_keys_of(root / "n2", name)))


def _unknown_namespace(root: Path) -> None:
    """A store has a row of a namespace that nobody knows of, and no state of its fragment."""
    replace(root / "n2", fragment_of(b"k302", "ghost"), {b"k302": OLD})


def _bank_keys() -> list[bytes]:
    """The keys of one fragment of `bank`, as the story leaves it."""
    keys = [*(b"b%d" % at for at in range(30)), *(b"c%d" % at for at in range(3)), *(b"z%d" % at for at in range(100))]
    return [key for key in keys if fragment_of(key, "bank") == fragment_of(b"z1", "bank")]


ROWS = {
    "a flipped bit": Damage(_flip("n2"), [told("UNREADABLE", b"k301", "n2")]),
    "the same flipped bit on two copies": Damage(_flip("n1", "n2"), [told("UNREADABLE", b"k301", "n1", "n2")]),
    "a flipped bit on every copy": Damage(_flip(*ALL), [told("UNREADABLE", b"k301", *ALL)]),
    "a forged value": Damage(_forge("n1"), [told("VALUE_MISMATCH", KEY, "n1")]),
    "a forged value on two copies": Damage(_forge("n1", "n3"), [told("VALUE_MISMATCH", KEY, "n1", "n3")]),
    "one value changed on all copies": Damage(_forge(*ALL), [told("STORE_DIFFERS_FROM_LOG", KEY, *ALL)]),
    "a forged value in another namespace": Damage(
        _forge("n3", key=b"b7", namespace="bank"), [told("VALUE_MISMATCH", b"b7", "n3", namespace="bank")]
    ),
    "a forged value where there was an empty one": Damage(_forge("n1", key=b"z5"), [told("VALUE_MISMATCH", b"z5", "n1")]),
    "two forged values": Damage(_two_values, [told("VALUE_MISMATCH", KEY, "n1", "n2")]),
    "two values that were swapped": Damage(_swap, [told("VALUE_MISMATCH", KEY, "n2"), told("VALUE_MISMATCH", OTHER, "n2")]),
    "several rows": Damage(
        _several,
        [
            told("MISSING_ON", b"k310", "n1"),
            told("VERSION_MISMATCH", b"k311", "n2"),
            told("TOMBSTONE_MISMATCH", b"k312", "n3"),
            told("EXTRA_ON", b"nowhere", "n3"),
        ],
    ),
    "one row, wrong in three ways": Damage(
        _in_three_ways,
        [told("MISSING_ON", KEY, "n1"), told("VALUE_MISMATCH", KEY, "n2"), told("VERSION_MISMATCH", KEY, "n3")],
    ),
    "a missing row": Damage(_put(KEY, None, "n3"), [told("MISSING_ON", KEY, "n3")]),
    "a row that a majority lost": Damage(_put(KEY, None, "n1", "n3"), [told("MISSING_ON", KEY, "n1", "n3")]),
    "a row that all lost": Damage(_put(KEY, None, *ALL), [told("STORE_DIFFERS_FROM_LOG", KEY, *ALL)]),
    "a row that one store lost, and does not know": Damage(
        _lose("n2"), [told_of_fragment("CONTENTS_MISMATCH", b"k313", "n2"), told("MISSING_ON", b"k313", "n2")]
    ),
    "a row that no copy has any more": Damage(
        _lose(*ALL),
        [
            *(told_of_fragment("CONTENTS_MISMATCH", b"k313", node) for node in ALL),
            told("STORE_DIFFERS_FROM_LOG", b"k313", *ALL),
        ],
    ),
    "a fragment without its rows": Damage(
        _empty, [told("MISSING_ON", key, "n2", namespace="bank") for key in _bank_keys()]
    ),
    "a row that nobody wrote": Damage(_put(b"nowhere", OLD, "n2"), [told("EXTRA_ON", b"nowhere", "n2")]),
    "a row that nobody wrote, on two copies": Damage(
        _put(b"nowhere", OLD, "n2", "n3"), [told("EXTRA_ON", b"nowhere", "n2", "n3")]
    ),
    "a row that nobody wrote, on all copies": Damage(
        _put(b"nowhere", OLD, *ALL), [told("STORE_DIFFERS_FROM_LOG", b"nowhere", *ALL)]
    ),
    "a row of a namespace that nobody knows": Damage(
        _unknown_namespace, [told("EXTRA_ON", b"k302", "n2", namespace="ghost")]
    ),
    "an older version": Damage(_put(OVERWRITTEN, OLD, "n1"), [told("VERSION_MISMATCH", OVERWRITTEN, "n1")]),
    "an older version on two copies": Damage(
        _put(OVERWRITTEN, OLD, "n1", "n2"), [told("VERSION_MISMATCH", OVERWRITTEN, "n1", "n2")]
    ),
    "an older version on all copies": Damage(
        _put(OVERWRITTEN, OLD, *ALL), [told("STORE_DIFFERS_FROM_LOG", OVERWRITTEN, *ALL)]
    ),
    "a version that no log tells of": Damage(_beyond, [told("VERSION_MISMATCH", KEY, "n2")]),
    "a version that nobody has counted to": Damage(_far_beyond("n2"), [told("VERSION_MISMATCH", KEY, "n2")]),
    "a version that nobody has counted to, on all copies": Damage(
        _far_beyond(*ALL), [told("STORE_DIFFERS_FROM_LOG", KEY, *ALL)]
    ),
    "a deleted row that is back": Damage(_put(DELETED, OLD, "n1"), [told("RESURRECTED", DELETED, "n1")]),
    "a deleted row that is back on two copies": Damage(
        _put(DELETED, OLD, "n1", "n2"), [told("RESURRECTED", DELETED, "n1", "n2")]
    ),
    "a deleted row that is back on all copies": Damage(
        _put(DELETED, OLD, *ALL), [told("STORE_DIFFERS_FROM_LOG", DELETED, *ALL)]
    ),
    "a delete that nobody asked for": Damage(_delete("n2"), [told("TOMBSTONE_MISMATCH", KEY, "n2")]),
    "a delete that nobody asked for, on two copies": Damage(
        _delete("n2", "n3"), [told("TOMBSTONE_MISMATCH", KEY, "n2", "n3")]
    ),
    "a delete that nobody asked for, on all copies": Damage(_delete(*ALL), [told("STORE_DIFFERS_FROM_LOG", KEY, *ALL)]),
    "a row in a partition of another": Damage(_misplace, [("MISPLACED", f"acc/{ELSEWHERE[1]}", "k344", list(ALL))]),
    "a row that one store has in a partition of another": Damage(
        _misplace_one, [("EXTRA_ON", f"acc/{ELSEWHERE[1]}", "k344", ["n2"])]
    ),
}
