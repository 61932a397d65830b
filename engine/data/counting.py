"""How many rows there are, at the primary of them: no row is read where a copy knows how many it has.

Each partition is counted as of one moment, and waits for what was in doubt there when it was looked at first: so a count
is what a scan would find that came to each partition just then. It goes on with the others meanwhile; of those that it had
counted it keeps the number. What came since the last checkpoint has to be looked up, but not what comes after the moment:
so that this is soon of all partitions, where there is much to look up it is done when it has come to all of them. Where an
older version wrote what a copy has, nobody knows how many rows there are, and they are walked, as a scan does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from engine.data.holdings import Holdings, Key
from engine.data.kept import Kept
from engine.data.scans import ReadPage
from engine.protocol.requests import Rows, Scan
from engine.state.store import LayeredStore
from wal.ids import Era, Fragment, TxId
from wal.probe import probe

CHANGED_MAX = 1_000
"""With more that was overwritten in a fragment since a cut it is walked instead of being reckoned back."""
WALKED_ROWS = 500
ASIDE_OF_WORK = 4
"""So many partitions are found to be in doubt at the cost of one that is counted, which is as much work as a row."""

BRIEFLY = 16
"""With more to look up in a partition it is begun, and gone on with later."""

GoOn: TypeAlias = Callable[[int], tuple[int | None, int]]
"""How many rows there were (None: nobody knows, or not yet), and the work: more than was allowed if it is not yet."""
Count: TypeAlias = Callable[[Fragment], tuple[GoOn, int]]
"""Begin to count a fragment as it is now: how it is gone on with, and how much work that was."""


class Counting:
    """A count that is being answered; `waits`: what is left is in doubt."""

    __slots__ = (
        "_aside",
        "_begun",
        "_count",
        "_counted",
        "_in_doubt",
        "_page",
        "_partitions",
        "_walking",
        "done",
        "marks",
        "request",
        "waits",
    )

    def __init__(self, request: Scan, count: Count, page: ReadPage) -> None:
        self.request = request
        self._count = count
        self._page = page
        self._partitions = list(reversed(request.partitions))
        self._aside: list[int] = []  # which were in doubt
        self._begun: list[tuple[int, GoOn]] = []
        self._walking: dict[int, bytes] = {}  # where to go on, in what nobody knows the number of
        self._counted = 0
        self._in_doubt: dict[int, dict[TxId | None, None]] = {}  # who was, by partition, when it came there first
        self.marks: list[tuple[int, int]] = []
        self.done = self.waits = False

    def go_on(self, most: int, doubtful: Callable[[int, bytes, bytes | None], bool]) -> int:
        """Do a piece of about `most`, and tell how much it was; what is `doubtful` is set aside."""
        work = 0
        if not (self._partitions or self._begun):
            self._partitions, self._aside = self._aside, []
        while work < most and (self._partitions or self._begun):
            if not self._partitions:
                number, go_on = self._begun.pop()
                work += self._count_on(number, go_on, most - work)
                continue
            number = self._partitions[-1]
            if number in self._walking:
                work += self._walk(number, doubtful)
            elif doubtful(number, b"", None):
                self._set_aside(number)
                work += len(self._aside) % ASIDE_OF_WORK == 0
            else:
                self._partitions.pop()
                go_on, began = self._count((self.request.namespace, number))
                work += began + self._count_on(number, go_on, BRIEFLY)
        over = not (self._partitions or self._begun)
        self.waits = over and bool(self._aside)
        self.done = over and not self._aside
        return work

    def _count_on(self, number: int, go_on: GoOn, most: int) -> int:
        """Count a partition, as far as that goes; to look what is known of it is much of the work, where there are many."""
        rows, work = go_on(most)
        if rows is not None:
            self._counted += rows
        elif work > most:
            self._begun.append((number, go_on))
        else:
            probe("count.walked")
            self._walking[number] = b""
            self._partitions.append(number)
        return work + 1

    def waited_for(self, number: int, held: Holdings) -> list[Key]:
        """A key of a partition that was in doubt when this count came there first, and is still; or none.

        Whoever voted later was not done when the count was asked for. So it need not be in it, and is not waited for: there
        may be no moment at which nobody is in doubt.
        """
        keys = [key for key in held.keys_in_doubt(number) if key[0] == self.request.namespace]
        first = self._in_doubt.get(number)
        if first is None:
            first = self._in_doubt[number] = dict.fromkeys(held.owned(key) for key in keys)
        return next(([key] for key in keys if held.owned(key) in first), [])

    def reply(self) -> Rows:
        """The answer."""
        return Rows(self.request.id, [], [], False, self.marks, count=self._counted)

    def _set_aside(self, number: int) -> None:
        self._partitions.pop()
        self._aside.append(number)

    def _walk(self, number: int, doubtful: Callable[[int, bytes, bytes | None], bool]) -> int:
        start = self._walking[number]
        page = self._page((self.request.namespace, number), start, WALKED_ROWS)
        if doubtful(number, start, page.next):
            self._set_aside(number)
        else:
            self._counted += sum(entry.value is not None for _, entry in page.rows)
            if page.next is not None:
                self._walking[number] = page.next
            else:
                del self._walking[number]
                self._partitions.pop()
        return page.work + 1


def count_of(store: LayeredStore) -> Count:
    """How many rows there are now, or a little later."""

    def begin(name: Fragment) -> tuple[GoOn, int]:
        return partial(store.counted, store.moment(name)), 0

    return begin


def count_at(cut: Era, kept: Kept, store: LayeredStore) -> Count:
    """How many rows there were at a cut: how many there are, and how many more there were."""

    def begin(name: Fragment) -> tuple[GoOn, int]:
        more, looked = kept.more(cut, name, CHANGED_MAX)
        moment = store.moment(name)

        def go_on(most: int) -> tuple[int | None, int]:
            if more is None or store.passed(moment):
                return None, 0
            rows, work = store.counted(moment, most)
            return (rows + more if rows is not None else None), work

        return go_on, looked

    return begin
