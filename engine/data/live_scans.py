"""A scan of what is there now, at its primary: what has expired is passed over, and deleted before anybody is told.

For who is to lock some of its rows at once those that somebody has locked already are no rows. Whether a transaction that
voted wrote others is not waited for: its rows are locked, too, or are yet to be there. Then it is told that there may be
others, as where a single write is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from engine.data.expiry import Expiry
from engine.data.holdings import Key
from engine.data.looks import Looks
from engine.data.scans import Scanning
from engine.protocol.requests import Scan
from engine.state.store import Page, Row
from wal.ids import EXPIRIES

KNOWN_WORK = 1
"""What it costs to take up what an earlier scan has found in a partition, rows and all."""
KNOWN_AT_ONCE = 8
"""Of so many partitions, where that is done of many together."""


class LiveScan(Scanning):
    """One such scan. `over`: what it has passed over and is to be deleted; `deleting`: times that it is."""

    __slots__ = ("_in_doubt", "_look", "_new", "_pages", "deleting", "over")

    def __init__(self, request: Scan, expiry: Expiry, looks: Looks) -> None:
        self.over: list[Key] = []
        self.deleting = 0
        namespace = request.namespace

        def passed_over(number: int, key: bytes, counter: int) -> bool:
            if not expiry.is_over(number, (namespace, key), counter):
                return False
            self.over.append((namespace, key))
            return True

        used = not request.stale and EXPIRIES in expiry.core.replica.namespaces
        expires = used and any(map(expiry.has_any, request.partitions))
        locks = expiry.locks

        def taken(key: bytes) -> bool:
            if locks.is_pending((namespace, key)):
                self.unsure = True
                return True
            return locks.busy((namespace, key))

        over = passed_over if expires else None
        super().__init__(request, expiry.core.replica.store.page, over, taken if request.unlocked else None)
        self._look = looks.at((namespace, self._begin, self._chunk, self._down)) if not request.stale else None
        self._new = self._look is not None and over is None and not self._down
        self._pages: dict[int, Page] = {}
        self._in_doubt = locks.partitions_in_doubt

    def go_on(self, most: int, doubtful: Callable[[int, bytes, bytes | None], bool]) -> int:
        """As any scan; but first what is known of partitions is taken up of all together, where nothing is in doubt."""
        work = 0
        if self._new:
            self._new = False
            work = self._take_up(most)
        return work + super().go_on(most - work, doubtful)

    def _take_up(self, most: int) -> int:
        """The first rows of nearly all partitions are at hand, and in order."""
        look, end, numbers = self._look, self.request.end, self.request.partitions
        if look is None or len(numbers) > most * KNOWN_AT_ONCE:
            return 0
        known = look.known(numbers, self._in_doubt())
        if known is None:
            return 0
        pages, heads, passed = known
        while end is not None and heads and heads[-1][0] >= end:
            heads.pop()
        self._pages, self._heads = pages, heads  # what is in order is a heap
        self._opening = [each for each in self._opening if each[0] not in pages]
        self._opening += [
            (n, following) for n in passed if (following := pages[n].next) is not None and not self._is_past(following)
        ]
        return len(pages) // KNOWN_AT_ONCE

    def _rest_of(self, number: int) -> tuple[Iterator[Row], bytes | None]:
        """The same; of what was taken up together few are ever asked for it."""
        rest = self._rest.get(number)
        if rest is None:
            page, end = self._pages[number], self.request.end
            rest = islice(page.rows, 1, None), page.next
            if end is not None and page.rows[-1][0] >= end:
                rest = iter([row for row in page.rows[1:] if row[0] < end]), None
            self._rest[number] = rest
        return rest

    def _open(self, number: int, start: bytes) -> tuple[Page, int]:
        """The first rows of a partition are as an earlier scan has found them, with what came there since."""
        look = self._look
        if look is None:
            return super()._open(number, start)
        if start == self._begin and (known := look.page(number)) is not None:
            return known, KNOWN_WORK
        page, work = super()._open(number, start)
        look.keep(number, start, page)
        return page, work
