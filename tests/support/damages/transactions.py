"""Transactions that did not end, or ended in two ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path

from tests.support.directories import append
from tests.support.reconciled import (
    ALL,
    IN_DOUBT,
    NOW_MS,
    YEAR_MS,
    Damage,
    counter_of,
    fragment_of,
    told,
    told_of_fragment,
    told_of_partition,
)
from wal import records as r

DECIDES, OTHER, THIRD = b"k342", b"k343", b"k301"
"""Keys of three partitions; that of the first one decides."""
assert len({fragment_of(key)[1] for key in (DECIDES, OTHER, THIRD)}) == 3


class Fate(Enum):
    """What became of a transaction in one partition of a copy."""

    COMMITTED = auto()
    ROLLED_BACK = auto()
    PREPARED = auto()
    UNHEARD = auto()


C, X, P, U = Fate


def _log(directory: Path, fates: Mapping[bytes, Fate]) -> None:
    """A copy has logged this of a transaction that writes these keys, and nothing else for a year."""
    said: list[r.Record] = []
    partitions = sorted(fragment_of(key)[1] for key in fates)
    for key, fate in fates.items():
        name = fragment_of(key)
        lwm, epoch = counter_of(directory, name)
        write = r.Write(*name, epoch, lwm, [key], [b"half"], 0, IN_DOUBT)
        if fate is not U:
            decision = fragment_of(DECIDES)[1]
            said.append(r.Prepare(IN_DOUBT, name[1], epoch, [write], locks=[], participants=partitions, decision=decision))
        if fate in {C, X}:
            said.append(r.Outcome(IN_DOUBT, name[1], epoch, fate is C, [(name[0], lwm, 1)]))
    append(directory, said, now_ms=NOW_MS)
    append(directory, [r.Checkpoint(0)], now_ms=NOW_MS + YEAR_MS)


def _ended(*fates: Fate, on: Sequence[str] = ALL, others: Sequence[Fate] = ()) -> Callable[[Path], None]:
    """So it ended in the partitions of the keys, on these copies; and so on the others."""

    def do(root: Path) -> None:
        for node in ALL:
            here = fates if node in on else others
            if here:
                _log(root / node, dict(zip((DECIDES, OTHER, THIRD), here, strict=False)))

    return do


def _vote(root: Path) -> None:
    """Two nodes voted for a transaction, another write came after it, and then nothing for a year."""
    namespace, number = name = fragment_of(b"k320")
    for node in ("n1", "n2"):
        lwm, epoch = counter_of(root / node, name)
        held = r.Write(namespace, number, epoch, lwm, keys=[b"k320"], values=[b"held"], stable=0, tx=IN_DOUBT)
        above = r.Write(namespace, number, epoch, lwm + 1, keys=[b"k321"], values=[b"above"], stable=0)
        prepare = r.Prepare(IN_DOUBT, number, epoch, [held], locks=[], participants=[number, 3], decision=3)
        append(root / node, [prepare, r.Update([above])], now_ms=NOW_MS)
        append(root / node, [r.Checkpoint(0)], now_ms=NOW_MS + YEAR_MS)


TRANSACTIONS = {
    "a transaction that was committed": Damage(_ended(C, C), [], 0),
    "a transaction that was rolled back": Damage(_ended(X, X), [], 0),
    "a transaction in doubt": Damage(
        _vote,
        [
            told_of_partition("TX_UNRESOLVED", b"k320", "n1", "n2"),
            told_of_fragment("COUNTER_GAP", b"k320", "n1", "n2"),
        ],
    ),
    "voted by all, and by nobody decided": Damage(
        _ended(P, P), [told_of_partition("TX_UNRESOLVED", DECIDES, *ALL), told_of_partition("TX_UNRESOLVED", OTHER, *ALL)]
    ),
    "voted by one copy only": Damage(
        _ended(P, P, on=["n3"]),
        [told_of_partition("TX_UNRESOLVED", DECIDES, "n3"), told_of_partition("TX_UNRESOLVED", OTHER, "n3")],
    ),
    "committed here and rolled back there, on all copies": Damage(
        _ended(C, X), [told_of_partition("TX_PARTIAL", OTHER, *ALL)]
    ),
    "rolled back where it is decided, and committed there": Damage(
        _ended(X, C), [told_of_partition("TX_PARTIAL", DECIDES, *ALL)]
    ),
    "committed here and never heard of there": Damage(_ended(C, U), [told_of_partition("TX_PARTIAL", OTHER, *ALL)]),
    "voted here and committed there": Damage(_ended(C, P), [told_of_partition("TX_PARTIAL", OTHER, *ALL)]),
    "voted here and rolled back there": Damage(_ended(X, P), [told_of_partition("TX_UNRESOLVED", OTHER, *ALL)]),
    "rolled back in one of three partitions": Damage(_ended(C, C, X), [told_of_partition("TX_PARTIAL", THIRD, *ALL)]),
    "another end in each of three partitions": Damage(
        _ended(C, X, P), [told_of_partition("TX_PARTIAL", OTHER, *ALL), told_of_partition("TX_PARTIAL", THIRD, *ALL)]
    ),
    "rolled back on one copy, and committed on the others": Damage(
        _ended(C, C, on=["n1", "n3"], others=[C, X]),
        [
            told_of_partition("TX_PARTIAL", OTHER, "n2"),
            told_of_fragment("DIGEST_MISMATCH", OTHER, "n2"),
            told("VERSION_MISMATCH", OTHER, "n2"),
        ],
    ),
    "voted on one copy, and committed on the others": Damage(
        _ended(C, C, on=["n1", "n3"], others=[C, P]),
        [told_of_partition("TX_PARTIAL", OTHER, "n2"), told_of_fragment("BEHIND", OTHER, "n2")],
    ),
}
