"""What a transaction remembers of the keys that it has read and the ranges that it has scanned, for its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.protocol.requests import Scanned
from engine.protocol.sizes import KEYS_MAX
from rebalance.table import Topology
from wal.ids import Namespace

Seen = tuple[int, int, bytes | None]
"""What was read of a key: (epoch, counter, value)."""
Own = dict[bytes, bytes | None]
"""Keys with what a transaction has made of them; None: it has deleted them."""
_Version = tuple[Namespace, bytes, int, int]


def scanned_of(
    namespace: Namespace,
    between: tuple[bytes, bytes | None],
    marks: Mapping[int, tuple[int, int]],
    touched: Sequence[bytes],
    *,
    read: Mapping[bytes, Seen],
    topology: Topology | None,
) -> Scanned:
    """A range into which nothing may come before the end, but for what was `touched`: that is seen to key by key.

    `marks`: of each partition, where its fragment stood before it was looked into; `read`: what is known of single keys.
    """
    low, high = between
    assert topology is not None, "it was scanned by it"
    places = topology.places(namespace, touched)
    known = [
        key
        for key, number in zip(touched, places, strict=True)
        if key in read and number in marks and read[key][1] > marks[number][1] and (high is None or key < high)
    ]
    return Scanned(namespace, low, high, [(number, *mark) for number, mark in marks.items()], known)


def in_pieces(scanned: Sequence[Scanned]) -> list[list[Scanned]]:
    """Ranges, in pieces that one request may ask about; at least one piece, which may be empty."""
    pieces: list[list[Scanned]] = [[]]
    size = 0
    for one in scanned:
        size += 1 + len(one.marks) + len(one.known)
        if size > KEYS_MAX and pieces[-1]:
            pieces.append([])
            size = 1 + len(one.marks) + len(one.known)
        pieces[-1].append(one)
    return pieces


def seen_of(
    read: Mapping[Namespace, Mapping[bytes, Seen]], written: Mapping[Namespace, Mapping[bytes, object]], *, optimistic: bool
) -> tuple[list[tuple[Namespace, bytes]], list[_Version], list[_Version]]:
    """What it has locked and only read; what it has read without locks, at which version; and which of that was absent."""
    locks: list[tuple[Namespace, bytes]] = []
    reads: list[_Version] = []
    absent: list[_Version] = []
    for namespace, seen in read.items():
        if optimistic:
            absent.extend((namespace, key, epoch, at) for key, (epoch, at, v) in seen.items() if v is None)
            reads.extend(
                (namespace, key, *((epoch, at) if v is not None else (0, 0))) for key, (epoch, at, v) in seen.items()
            )
        else:
            mine = written.get(namespace, {})
            locks.extend((namespace, key) for key in seen if key not in mine)
    return locks, reads, absent
