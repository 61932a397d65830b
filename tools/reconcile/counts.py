"""What a comparison looked at, counted: what shares count adds up, in whatever order they come."""

from __future__ import annotations

import msgspec

from wal.ids import Namespace, NodeId


class Tally(msgspec.Struct):
    """What was looked at, of one namespace."""

    fragments: int = 0
    keys: int = 0
    findings: int = 0


class Counts(msgspec.Struct):
    """What was looked at, and what could not be. `apart` is by node and state: fragments, and counters behind.

    `copies` were compared, of `copies_known`: those that the map calls in sync, and what else was found.
    """

    namespaces: dict[Namespace, Tally] = {}
    copies: int = 0
    copies_known: int = 0
    alone: int = 0  # fragments with one copy only: read, and compared with nothing
    single: int = 0  # of these, such as are to have no other
    lost: list[int] = []  # partitions that no in-sync copy is left of
    unsettled_keys: int = 0
    stale_keys: int = 0  # of these, keys that cannot be on their way any more
    unsettled_gaps: int = 0
    transactions_under_way: int = 0
    apart: dict[str, tuple[int, int]] = {}
    absent: dict[NodeId, int] = {}  # in-sync copies of partitions whose directory was not given, or cannot be read
    kinds: dict[str, int] = {}
    incomplete: int = 0
    by_digest: int = 0  # fragments whose rows were not read: all copies' digests agree
    unseen: int = 0  # buckets of sketches that have to be seen, and were not

    def add(self, other: Counts) -> None:
        """Count what another share counted."""
        for namespace, theirs in other.namespaces.items():
            mine = self.namespaces.setdefault(namespace, Tally())
            mine.fragments += theirs.fragments
            mine.keys += theirs.keys
            mine.findings += theirs.findings
        self.copies += other.copies
        self.copies_known += other.copies_known
        self.lost += other.lost
        self.alone += other.alone
        self.single += other.single
        self.unsettled_keys += other.unsettled_keys
        self.stale_keys += other.stale_keys
        self.unsettled_gaps += other.unsettled_gaps
        self.transactions_under_way += other.transactions_under_way
        self.incomplete += other.incomplete
        self.by_digest += other.by_digest
        self.unseen += other.unseen
        for name, (fragments, behind) in other.apart.items():
            had = self.apart.get(name, (0, 0))
            self.apart[name] = (had[0] + fragments, had[1] + behind)
        for node, partitions in other.absent.items():
            self.absent[node] = self.absent.get(node, 0) + partitions
        for kind, count in other.kinds.items():
            self.kinds[kind] = self.kinds.get(kind, 0) + count
