"""Scans and counts of a namespace, as calls: what each node is asked for, and how the answers come together."""

from __future__ import annotations

from engine.client.calls import Call, Item, unexpected
from engine.protocol.requests import Reply, Request, Rows, Scan
from rebalance.table import Topology
from wal.ids import NO_ERA, Era, Namespace

PART_ROWS = 8
"""So many rows more than its part of a page each node is asked for: small pages are whole, wherever their rows lie."""


class ScanCall(Call):
    """One page of a scan over all partitions, in key order.

    When it is finished, `rows` has all that is in `covered`, and `following` is what is left of the range. `marks`, if they
    were asked for: where each partition's fragment stood before it was looked into, as (epoch, counter). `cut` as with
    `GetCall`; of one an older node tells no marks (`unmarked`). `reverse`: the last rows of the range, descending.
    `unlocked`: for who is to lock some of them now, without those that somebody has locked; an older node has all, when it
    knows what became of them. `sure`: there are no others.
    """

    def __init__(
        self,
        namespace: Namespace,
        start: bytes,
        end: bytes | None,
        limit: int,
        *,
        stale: bool = False,
        age_ms: int = -1,
        marked: bool = False,
        cut: Era = NO_ERA,
        reverse: bool = False,
        unlocked: bool = False,
    ) -> None:
        self.cut = cut
        self.unlocked = unlocked
        self.reverse = reverse
        self.namespace = namespace
        self.anywhere, self.any_age = stale, stale and age_ms < 0
        self.marked = marked
        self.unmarked = False
        self.marks: dict[int, tuple[int, int]] = {}
        self.age_ms = age_ms
        self.start = start
        self.end = end
        self.limit = limit
        self._unsure = False
        self._numbers = range(1)
        self._asked: dict[int, list[int]] = {}  # which partitions each request asks about
        self._rows: list[tuple[bytes, bytes]] = []
        self._in_order: list[tuple[bytes, bytes]] | None = None  # those of the page and what is known behind it
        self._complete_up_to: bytes | None = None  # some node has more rows beyond this key

    def partitions(self, topology: Topology) -> list[int]:
        """All that the namespace has."""
        self._numbers = topology.partitions_of(self.namespace)
        return list(self._numbers)

    def request(self, request_id: int, items: list[Item]) -> Request:
        """Rows of one node's partitions: its part of the page, and some more; if that is too few, the page is shorter."""
        at, up_to, within = self.start, self.end, self.within_ms
        part = self.limit * len(items) // len(self._numbers)
        numbers = [self._numbers[item] for item in items]
        if self.marked:
            self._asked[request_id] = numbers
        return Scan(
            request_id,
            self.namespace,
            partitions=numbers,
            start=at,
            end=up_to,
            limit=min(self.limit, part + part // 4 + PART_ROWS),
            within_ms=within,
            stale=self.anywhere,
            age_ms=self.age_ms,
            marks=self.marked,
            cut=self.cut,
            reverse=self.reverse,
            unlocked=self.unlocked,
        )

    def take(self, items: list[Item], reply: Reply) -> None:
        """Merge one node's rows."""
        if not isinstance(reply, Rows) or len(reply.keys) != len(reply.values):
            raise unexpected(reply)
        if self.marked:
            numbers = self._asked.pop(reply.id, [])
            self.unmarked = self.unmarked or (self.cut != NO_ERA and not reply.marks)
            if len(reply.marks) != len(numbers) and not self.unmarked:
                raise unexpected(reply)
            self.marks.update(zip(numbers, reply.marks, strict=not self.unmarked))
        self._in_order = None
        self._unsure = self._unsure or not reply.sure
        self._rows.extend(zip(reply.keys, reply.values, strict=True))
        if reply.more:
            last = reply.keys[-1]
            if self._complete_up_to is not None:
                last = max(last, self._complete_up_to) if self.reverse else min(last, self._complete_up_to)
            self._complete_up_to = last

    @property
    def sure(self) -> bool:
        """Whether the range has no other rows but such that somebody has locked."""
        return not self._unsure and self.following is None

    @property
    def covered(self) -> tuple[bytes, bytes | None]:
        """The range, low <= key < high, of which the page has all rows."""
        at = self._ends_at()
        if self.reverse:
            return at if at is not None else self.start, self.end
        return self.start, at if at is not None else self.end

    @property
    def following(self) -> tuple[bytes, bytes | None] | None:
        """The range of which the next pages are; None when there is none."""
        at = self._ends_at()
        if at is None:
            return None
        low, high = (self.start, at) if self.reverse else (at, self.end)
        return (low, high) if high is None or low < high else None

    def _ends_at(self) -> bytes | None:
        if not self.reverse:
            return self.next_start
        rows = self._sorted()
        return rows[self.limit - 1][0] if len(rows) > self.limit else self._complete_up_to

    @property
    def next_start(self) -> bytes | None:
        """Where the next page of an ascending scan begins; None when there is none."""
        rows = self._sorted()
        if len(rows) > self.limit:
            return rows[self.limit][0]
        return self._complete_up_to + b"\0" if self._complete_up_to is not None else None

    @property
    def rows(self) -> list[tuple[bytes, bytes]]:
        """The page."""
        return self._sorted()[: self.limit]

    def _sorted(self) -> list[tuple[bytes, bytes]]:
        if self._in_order is None:
            self._in_order = self._put_in_order()
        return self._in_order

    def _put_in_order(self) -> list[tuple[bytes, bytes]]:
        rows = sorted(self._rows, reverse=self.reverse)
        if (last := self._complete_up_to) is not None:
            rows = [row for row in rows if (row[0] >= last if self.reverse else row[0] <= last)]
        return rows


class CountCall(Call):
    """How many rows a namespace has: `counted`. `stale`, `age_ms` and `cut` as with `GetCall`."""

    def __init__(self, namespace: Namespace, *, stale: bool = False, age_ms: int = -1, cut: Era = NO_ERA) -> None:
        self.cut = cut
        self.namespace = namespace
        self.anywhere, self.any_age = stale, stale and age_ms < 0
        self.age_ms = age_ms
        self.counted = 0
        self._numbers = range(1)

    def partitions(self, topology: Topology) -> list[int]:
        """All that the namespace has."""
        self._numbers = topology.partitions_of(self.namespace)
        return list(self._numbers)

    def request(self, request_id: int, items: list[Item]) -> Request:
        """Count the rows of one node's partitions."""
        return Scan(
            request_id,
            self.namespace,
            partitions=[self._numbers[item] for item in items],
            start=b"",
            end=None,
            limit=1,
            within_ms=self.within_ms,
            stale=self.anywhere,
            age_ms=self.age_ms,
            cut=self.cut,
            count=True,
        )

    def take(self, items: list[Item], reply: Reply) -> None:
        """Add what one node has."""
        if not isinstance(reply, Rows) or reply.count < 0:
            raise unexpected(reply)
        self.counted += reply.count
