"""A scan of what is there now, at its primary: what has expired is passed over, and deleted before anybody is told.

For who is to lock some of its rows at once those that somebody has locked already are no rows. Whether a transaction that
voted wrote others is not waited for: its rows are locked, too, or are yet to be there. Then it is told that there may be
others, as where a single write is under way.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from engine.data.expiry import Expiry
from engine.data.holdings import Key
from engine.data.looks import Looks
from engine.data.scans import Scanning
from engine.protocol.requests import Scan
from engine.state.store import Page
from wal.ids import EXPIRIES

KNOWN_WORK = 1
"""What it costs to take up what an earlier scan has found in a partition, rows and all."""
KNOWN_AT_ONCE = 8
"""Of so many partitions, where that is done of many together."""


class LiveScan(Scanning):
    """One such scan. `over`: what it has passed over and is to be deleted; `deleting`: times that it is."""

    __slots__ = ("_in_doubt", "_look", "_new", "deleting", "over")

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
        self._new = self._look is not None and over is None
        self._in_doubt = locks.in_doubt_in

    def go_on(self, most: int, doubtful: Callable[[int, bytes, bytes | None], bool]) -> int:
        """As any scan; but first what is known of partitions is taken up of all together, where nothing is in doubt."""
        work = 0
        if self._new and self._look is not None:
            self._new, doubts = False, self._in_doubt
            opening = islice(reversed(self._opening), most * KNOWN_AT_ONCE)
            known = self._look.known([number for number, _ in opening if not doubts(number)])
            self._take_up(known)
            work = len(known) // KNOWN_AT_ONCE
        return work + super().go_on(most - work, doubtful)

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
