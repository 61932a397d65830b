"""What scans found at the beginning of a range, partition by partition, for the next ones that ask for the same.

Many who take from one range ask for its first rows over and over, and each time few of its partitions have changed. Nothing
comes into a fragment without its counter, as `engine.data.ranges` has it: so what was read of one whose counter had no gap
is what is there for as long as nothing higher is applied. A delete that is forgotten moves no counter, and is no row.
What else a row is to be asked (whether it has expired, whether it is in doubt) is asked by each scan anew.

A write of few keys that counts and is the next one of its fragment is made in what is known, too. So what is known begins
behind the rows that were taken, and goes on with the next ones where a scan reads on: nobody walks once more through
the deletes before the first row, which are as many as were ever taken since the last ones were forgotten.

That holds of a primary. Another copy may be set back, and come to the same counter by another history; so what was found is
kept for who reads from a primary, and until the next map. A write costs it nothing. A range that is asked for once is not
kept, so that who walks through all rows pushes nobody out.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from typing import NamedTuple, TypeAlias

from engine.state.replica import Replica
from engine.state.store import ROW_OVERHEAD_BYTES, Entry, Page
from rebalance.fragment import FragmentState
from wal import records as r
from wal.ids import Namespace
from wal.probe import probe

LOOKS_MAX = 8
LOOK_BYTES_MAX = 4 << 20
PAGE_BYTES_MAX = 8 << 10
"""What is found in one partition and weighs more is not kept: to read it again costs little beside telling it."""
ASKED_MAX = 64
"""So many ranges that were asked for once are remembered."""
PAGE_OVERHEAD_BYTES = 250
NOTED_KEYS = 16
"""A write of more keys is not made in what is known: it is read again."""
Shape: TypeAlias = tuple[Namespace, bytes, int, bool]
"""What pages are alike in: of which namespace, from which key on, how many rows at a time, and whether downwards."""


class _Found(NamedTuple):
    """What was found in one partition; `fragment`: None if it did not exist."""

    fragment: FragmentState | None
    counter: int
    page: Page


Head: TypeAlias = tuple[bytes, int, bytes]
"""The first row that is known of a partition: its key, the partition, its value."""


class Known(NamedTuple):
    """What is known of some partitions: a page of each; the first rows of all, in the order of their keys; and of which all
    is gone that was known, so that there may be more behind it."""

    pages: dict[int, Page]
    heads: list[Head]
    passed: list[int]


class Look:
    """What was found of one shape, by partition. Each is what a page would be that is read now, without its deletes.

    Whoever asks for the first rows of all partitions is told of them in order, which is kept: few change in between.
    """

    __slots__ = ("_bytes", "_down", "_found", "_heads", "_passed", "_replica", "_start", "namespace")

    def __init__(self, replica: Replica, shape: Shape) -> None:
        self._replica = replica
        self.namespace, self._start, _, self._down = shape
        self._found: dict[int, _Found] = {}
        self._heads: list[Head] = []
        self._passed: dict[int, None] = {}
        self._bytes = 0

    def page(self, number: int) -> Page | None:
        """What is there now, if that is known."""
        found = self._found.get(number)
        if found is None:
            return None
        known, counter, page = found
        fragment = self._replica.fragments.get((self.namespace, number))
        if fragment is known and (fragment is None or fragment.counter.highest_applied == counter):
            return page
        self._drop(number)
        return None

    def known(self, numbers: Collection[int], doubtful: Collection[int]) -> Known | None:
        """The same of many partitions, but for those that are doubtful: of those of which it is known. None where more is
        known than is asked for."""
        found = self._found
        if len(found) > len(numbers) or not found.keys() <= set(numbers):
            return None
        for number in self._changed():
            self._drop(number)
        left_out = {number for number in doubtful if number in found}
        if not left_out:
            return Known({number: page for number, (_, _, page) in found.items()}, self._heads.copy(), list(self._passed))
        pages = {number: page for number, (_, _, page) in found.items() if number not in left_out}
        passed = [number for number in self._passed if number not in left_out]
        return Known(pages, [head for head in self._heads if head[1] not in left_out], passed)

    def _changed(self) -> list[int]:
        """Into which of the partitions that are known something came that was not noted, as `page` asks of one."""
        partitions, namespace, changed = self._replica.partitions, self.namespace, list[int]()
        for number, (fragment, counter, _) in self._found.items():
            state = partitions.get(number)
            there = state.fragments.get(namespace) if state is not None else None
            if there is not fragment or (there is not None and there.counter.highest_applied != counter):
                changed.append(number)
        return changed

    def keep(self, number: int, start: bytes, page: Page) -> None:
        """This was read of a partition just now, from `start` on: where the range begins, or what is known of it ends."""
        fragment = self._replica.fragments.get((self.namespace, number))
        if page.next == start or (fragment is not None and fragment.counter.ranges):
            return  # its rows were not in order yet; or what fills a gap would not show
        rows = [row for row in page.rows if row[1].value is not None]
        if start != self._start:
            known = self.page(number)
            if known is None or known.next != start:
                return
            rows = known.rows + rows
            if _weight(Page(rows, page.next, 0)) > PAGE_BYTES_MAX:
                return
            self._drop(number)
        page = Page(rows, page.next, 0)
        self._set(number, _Found(fragment, fragment.counter.lwm if fragment is not None else 0, page))

    def note(self, write: r.Write) -> None:
        """A write of the namespace counts, and was applied just now: what is known of its partition is as it is with it,
        or is known no more."""
        number = write.partition
        found = self._found.get(number)
        if found is None:
            return
        fragment, counter, page = found
        if fragment is None or counter != write.start or fragment.counter.highest_applied != write.end:
            return  # other writes come in between, as whoever asks will see
        self._drop(number)
        if len(write.keys) <= NOTED_KEYS and not write.closed:
            rows = page.rows
            for at, (key, value) in enumerate(zip(write.keys, write.values, strict=True), write.start + 1):
                if self._is_known(key, page.next):
                    rows = self._with(rows, key, Entry(write.epoch, at, value))
            self._set(number, _Found(fragment, write.end, Page(rows, page.next, 0)))

    def _is_known(self, key: bytes, following: bytes | None) -> bool:
        """Whether a key lies in what a page has all rows of."""
        if self._down:
            return key < self._start and (following is None or key >= following)
        return key >= self._start and (following is None or key < following)

    def _with(self, rows: list[tuple[bytes, Entry]], key: bytes, entry: Entry) -> list[tuple[bytes, Entry]]:
        """Some rows, and what has become of one more key. A scan may be reading the old ones."""
        keys = [row[0] for row in rows]
        if self._down:
            keys.reverse()
        at = bisect_left(keys, key)
        there = at < len(keys) and keys[at] == key
        if self._down:
            at = len(rows) - at - there
        return [*rows[:at], *([(key, entry)] if entry.value is not None else ()), *rows[at + there :]]

    def _set(self, number: int, found: _Found) -> None:
        weight = _weight(found.page)
        if weight > PAGE_BYTES_MAX or self._bytes + weight > LOOK_BYTES_MAX:
            return
        assert number not in self._found, "what is known is not read again"
        self._found[number] = found
        self._bytes += weight
        if (rows := found.page.rows) and (value := rows[0][1].value) is not None:
            insort(self._heads, (rows[0][0], number, value))
        elif found.page.next is not None:
            self._passed[number] = None

    def _drop(self, number: int) -> None:
        page = self._found.pop(number).page
        self._bytes -= _weight(page)
        self._passed.pop(number, None)
        if page.rows:
            at = bisect_left(self._heads, (page.rows[0][0], number))
            assert self._heads[at][1] == number, "the first row of each partition is among them"
            del self._heads[at]

    def forget(self) -> None:
        """Nothing of it is known any more."""
        self._found.clear()
        self._heads.clear()
        self._passed.clear()
        self._bytes = 0


class Looks:
    """What one node keeps of what scans found. Invariant: at most `LOOKS_MAX` looks of at most `LOOK_BYTES_MAX` each."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.kept: dict[Shape, Look] = {}  # what was used last comes last, as below
        self._asked: dict[Shape, None] = {}

    def at(self, shape: Shape) -> Look | None:
        """What is known of a shape that a scan asks for; None if nobody has asked for it lately."""
        look = self.kept.pop(shape, None)
        if look is None:
            if shape not in self._asked:
                self._asked[shape] = None
                if len(self._asked) > ASKED_MAX:
                    del self._asked[next(iter(self._asked))]
                return None
            probe("look.kept")
            del self._asked[shape]
            look = Look(self._replica, shape)
            if len(self.kept) >= LOOKS_MAX:
                self.kept.pop(next(iter(self.kept))).forget()
        self.kept[shape] = look
        return look

    def note(self, write: r.Write) -> None:
        """A write counts, and was applied just now. Whoever writes need not say so: then it is read again."""
        for look in self.kept.values():
            if look.namespace == write.namespace:
                look.note(write)

    def forget(self) -> None:
        """There is another map: copies may have become others."""
        for look in self.kept.values():
            look.forget()
        self.kept, self._asked = {}, {}


def _weight(page: Page) -> int:
    """About how many bytes are kept with a page."""
    return PAGE_OVERHEAD_BYTES + sum(ROW_OVERHEAD_BYTES + len(key) + len(entry.value or b"") for key, entry in page.rows)
