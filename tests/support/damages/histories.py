"""Damages of what copies count: counters, epochs, digests."""

from __future__ import annotations

from pathlib import Path

from engine.state.store import CheckpointImage
from engine.state.store_lmdb import LmdbStore
from tests.support.directories import append
from tests.support.reconciled import (
    ALL,
    HOUR_MS,
    NOW_MS,
    Damage,
    beside,
    counter_of,
    fragment_of,
    told,
    told_of_fragment,
    told_of_partition,
    write,
)
from wal import records as r

KEY = b"k341"
NAME = fragment_of(KEY)
LATER = b"k321"


def _clash(root: Path) -> None:
    """A log has an update whose counters are taken."""
    name = fragment_of(b"k330")
    lwm, epoch = counter_of(root / "n2", name)
    overlap = r.Write(*name, epoch, lwm - 1, keys=[b"x", b"y"], values=[b"", b""])
    append(root / "n2", [r.Update([overlap])], now_ms=NOW_MS)


def _one_behind(root: Path) -> None:
    """Two copies have one update more than the third, and that for an hour."""
    write(root, ("n1", "n2"), KEY, b"newer")


def _one_ahead(root: Path) -> None:
    write(root, ("n1",), KEY, b"newer")


def _behind_in_two(root: Path) -> None:
    """In two fragments, and by two counters in one of them."""
    for key in (KEY, KEY, b"k342"):
        write(root, ("n1", "n3"), key, b"newer")


def _gap(root: Path) -> None:
    """One copy has the second of two updates, and not the first."""
    write(root, ("n1", "n2"), KEY, b"newer")
    write(root, ("n1", "n2"), beside(KEY), b"newer")
    write(root, ("n3",), beside(KEY), b"newer", skip=1)


def _gap_on_all(root: Path) -> None:
    """A counter that nobody has lies below one that all have."""
    write(root, ALL, KEY, b"newer", skip=1)


def _stable_elsewhere(root: Path) -> None:
    """The others have heard that an update is on every in-sync copy, and one copy does not have it."""
    write(root, ("n1", "n2"), KEY, b"newer")
    lwm, _ = counter_of(root / "n1", NAME)
    write(root, ("n1", "n2"), beside(KEY), b"newer", stable=lwm)


def _another_value(root: Path) -> None:
    """The same counter is another update on one copy."""
    write(root, ("n1", "n3"), KEY, b"one")
    write(root, ("n2",), KEY, b"another")


def _another_key(root: Path) -> None:
    write(root, ("n1", "n3"), KEY, b"one")
    write(root, ("n2",), beside(KEY), b"one")


def _a_delete_instead(root: Path) -> None:
    write(root, ("n1", "n3"), KEY, b"one")
    write(root, ("n2",), KEY, None)


def _three_histories(root: Path) -> None:
    for node in ALL:
        write(root, (node,), KEY, node.encode())


def _another_epoch(root: Path) -> None:
    """The others hold settled what this one has issued anew, in an epoch of its own."""
    lwm, epoch = counter_of(root / "n2", NAME)
    write(root, ("n1", "n3"), KEY, b"one")
    write(root, ("n1", "n3"), beside(KEY), b"one", stable=lwm + 1)
    began = r.EpochStart(NAME[1], epoch + 1, [(NAME[0], lwm + 1)])
    writes = [r.Write(*NAME, epoch + 1, lwm + at, [key], [b"one"]) for at, key in enumerate((KEY, beside(KEY)))]
    append(root / "n2", [began, r.Update(writes)], now_ms=NOW_MS)


def _forget_fragment(root: Path) -> None:
    """A whole fragment, its rows and its counters, is gone from one store."""
    store = LmdbStore(root / "n2" / "store")
    name = fragment_of(b"k345")
    store.write(CheckpointImage(store.load().lsn, {}, {name: None}, {}, cleared=[name], rows={}))
    store.close()


def _all_alike(root: Path) -> None:
    """All wrote the same, each at a time of its own."""
    for at, node in enumerate(ALL):
        write(root, (node,), KEY, b"newer", now_ms=NOW_MS + at * HOUR_MS)


HISTORIES = {
    "an update at three different times": Damage(_all_alike, [], 0),
    "two histories": Damage(_clash, [told_of_partition("UNREADABLE", b"k330", "n2")], 3),
    "a copy one counter behind": Damage(_one_behind, [told_of_fragment("BEHIND", KEY, "n3")]),
    "two copies one counter behind": Damage(_one_ahead, [told_of_fragment("BEHIND", KEY, "n2", "n3")]),
    "a copy that is behind in two fragments": Damage(
        _behind_in_two, [told_of_fragment("BEHIND", KEY, "n2"), told_of_fragment("BEHIND", b"k342", "n2")]
    ),
    "a copy without the first of two counters": Damage(_gap, [told_of_fragment("COUNTER_GAP", KEY, "n3")]),
    "a counter that nobody has": Damage(_gap_on_all, [told_of_fragment("COUNTER_GAP", KEY, *ALL)]),
    "a copy without what is known to be everywhere": Damage(
        _stable_elsewhere, [told_of_fragment("COUNTER_GAP", KEY, "n3"), told_of_fragment("BEHIND", KEY, "n3")]
    ),
    "a fragment that is gone from one store": Damage(
        _forget_fragment,
        [told_of_fragment("COUNTER_GAP", b"k345", "n2"), told_of_fragment("BEHIND", b"k345", "n2")],
    ),
    "another value under the same counter": Damage(
        _another_value, [told_of_fragment("DIGEST_MISMATCH", KEY, "n2"), told("VALUE_MISMATCH", KEY, "n2")]
    ),
    "another key under the same counter": Damage(
        _another_key,
        [
            told_of_fragment("DIGEST_MISMATCH", KEY, "n2"),
            told("VERSION_MISMATCH", KEY, "n2"),
            told("VERSION_MISMATCH", beside(KEY), "n2"),
        ],
    ),
    "a delete under the same counter": Damage(
        _a_delete_instead, [told_of_fragment("DIGEST_MISMATCH", KEY, "n2"), told("TOMBSTONE_MISMATCH", KEY, "n2")]
    ),
    "a history of its own on each copy": Damage(
        _three_histories,
        [
            told_of_fragment("DIGEST_MISMATCH", KEY, "n2"),
            told_of_fragment("DIGEST_MISMATCH", KEY, "n3"),
            told("VALUE_MISMATCH", KEY, "n2", "n3"),
        ],
    ),
    "counters that were issued in two epochs": Damage(
        _another_epoch, [told_of_fragment("EPOCH_FORK", KEY, "n2"), told("VERSION_MISMATCH", KEY, "n2")]
    ),
}
