"""One page of a scan at its primary: the rows of some partitions, merged in key order or in reverse, read piece by piece.

There may be thousands of partitions to look into for a single row, and tombstones by the ten thousand before it. So a
scan is a value that is gone on with until it is done; each key was what it is told to be when it was read, which is all
that a scan promises.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from heapq import heappop, heappush, heapreplace
from typing import Protocol

from msgspec import structs

from engine.protocol.requests import Rows, Scan
from engine.state.store import Page, Row
from wal.ids import KEY_BYTES_MAX, Fragment

SCAN_ROWS_MAX = 16_000
SCAN_BYTES_MAX = 4 << 20
SCAN_CHUNK_ROWS = 4
SCAN_CHUNK_ROWS_MAX = 2_000
"""So many rows of a partition are read in one piece at most, however many are asked for."""
AGAIN_CHUNK_ROWS = 32
AGAIN_ROW_BYTES = 1 << 10
"""What is gone on with is read in larger chunks, and kept only where its rows are no larger, about."""
OPENING_WORK = 8
"""What it costs to look into a partition, beside the rows."""


_TOP = b"\xff" * (KEY_BYTES_MAX + 1)
"""Above every key."""


class ReadPage(Protocol):
    """Reads a page of one fragment, up or down from a key."""

    def __call__(self, fragment: Fragment, start: bytes, limit: int, *, down: bool = False) -> Page:
        """See `engine.state.store.LayeredStore.page`."""
        ...


class _Falling(bytes):
    """A key of a scan in reverse: the greatest comes first."""

    __slots__ = ()

    def __lt__(self, other: bytes) -> bool:
        return bytes.__gt__(self, other)


Alike = tuple[object, ...]
"""What a scan asks for, whoever asks."""


def alike(request: Scan) -> Alike:
    """What those scans have in common that one look answers."""
    r = request
    return r.namespace, tuple(r.partitions), r.start, r.end, r.limit, r.stale, r.marks, r.count, r.reverse, r.unlocked


def reply_to(request_id: int, rows: Rows, rank: int) -> Rows:
    """What one look found, for one of those who are told by it.

    `rank`: who is about to lock one of the rows, as the `rank`-th of several (from 0), begins so many rows further on, lest
    all of them try for the first; but of half of the rows each of them is told.
    """
    rows = structs.replace(rows, id=request_id)
    at = rank % (len(rows.keys) // 2 + 1)
    return structs.replace(rows, keys=rows.keys[at:], values=rows.values[at:], sure=False) if at else rows


class Scanning:
    """A scan that is being answered. When `done`, `keys` and `values` are the page, and `more` says if rows are left."""

    __slots__ = (
        "_begin",
        "_bytes",
        "_chunk",
        "_down",
        "_heads",
        "_limit",
        "_opening",
        "_over",
        "_page",
        "_rest",
        "_taken",
        "done",
        "keys",
        "marks",
        "more",
        "request",
        "unsure",
        "values",
        "waits",
    )

    def __init__(
        self,
        request: Scan,
        page: ReadPage,
        over: Callable[[int, bytes, int], bool] | None = None,
        taken: Callable[[bytes], bool] | None = None,
    ) -> None:
        self.request = request
        self._down = request.reverse
        self._page = page
        self._over = over  # whether the row of a key in a partition, at this counter, is passed over
        self._taken = taken  # whether that of a key is, when its turn has come
        self._limit = max(1, min(request.limit, SCAN_ROWS_MAX))
        wanted = min(2 * self._limit // max(1, len(request.partitions)), SCAN_CHUNK_ROWS_MAX)
        self._chunk = max(SCAN_CHUNK_ROWS, wanted)
        self._begin = request.start if not self._down else request.end if request.end is not None else _TOP
        self._opening = [(number, self._begin) for number in reversed(request.partitions)]  # whose next row is not known
        self._heads: list[tuple[bytes, int, bytes]] = []  # a heap: the next row of each partition that has one
        self._rest: dict[int, tuple[Iterator[Row], bytes | None]] = {}  # what follows, and where to go on
        self._bytes = 0
        self.keys: list[bytes] = []
        self.values: list[bytes] = []
        self.marks: list[tuple[int, int]] = []  # where the fragments stood before, if that is to be told
        self.more = self.done = self.waits = False
        self.unsure = taken is None  # whether there is more than it tells of, and than what is taken

    def go_on(self, most: int, doubtful: Callable[[int, bytes, bytes | None], bool]) -> int:
        """Do a piece of about `most`, and tell how much it was; it ends early (`waits`) where a partition's range is
        `doubtful`."""
        work, self.waits = 0, False
        while work < most and not self.done:
            if self._opening:
                number, start = self._opening[-1]
                page, cost = self._open(number, start)
                work += cost
                if doubtful(number, page.next or b"", start) if self._down else doubtful(number, start, page.next):
                    self.waits = True
                    break
                self._opening.pop()
                self._look_into(number, page)
            elif self._heads:
                work += 1
                self._take()
            else:
                self.done = True
        return work

    def reply(self) -> Rows:
        """The answer."""
        return Rows(self.request.id, self.keys, self.values, self.more, self.marks, sure=not (self.more or self.unsure))

    def again(self, request: Scan) -> bool:
        """Go on with what was `done`, from a later key on, as the next page; False if it cannot be.

        Only what does not change may be gone on with: the rows at a cut. Its next rows are at hand already, where a new
        scan would look into each partition for them.
        """
        if self._down:
            high, last = request.end if request.end is not None else _TOP, self.keys[-1:] or [b""]
            beyond = (self.more and high < last[0]) or high > (self.request.end if self.request.end is not None else _TOP)
            at = len(self.keys) - bisect_left(self.keys[::-1], high)
        else:
            beyond = (self.more and request.start > self.keys[-1] + b"\0") or request.start < self.request.start
            at = bisect_left(self.keys, request.start)
        if beyond or not self.is_small:
            return False
        limit = max(1, min(request.limit, SCAN_ROWS_MAX))
        if len(self.keys) - at > limit:
            return False
        self.request, self._limit, self._chunk = request, limit, max(self._chunk, AGAIN_CHUNK_ROWS)
        self.keys, self.values = self.keys[at:], self.values[at:]
        self._bytes = sum(map(len, self.keys)) + sum(map(len, self.values))
        self.more = self.done = False
        return True

    @property
    def is_small(self) -> bool:
        """Whether the rows are small enough for many to be at hand."""
        return self._bytes <= AGAIN_ROW_BYTES * len(self.keys)

    def _open(self, number: int, start: bytes) -> tuple[Page, int]:
        """The next rows of a partition, and how much work they were."""
        page = self._page((self.request.namespace, number), start, self._chunk, down=self._down)
        return page, page.work + OPENING_WORK

    def _look_into(self, number: int, page: Page) -> None:
        found, following, over, down = page.rows, page.next, self._over, self._down
        if found and (down or self.request.end is not None) and self._is_past(found[-1][0]):
            found, following = [row for row in found if not self._is_past(row[0])], None
        if over is not None:
            found = [row for row in found if row[1].value is not None and not over(number, row[0], row[1].counter)]
        rows = iter(found)  # of each partition few are wanted, mostly none
        for key, entry in rows:
            if entry.value is not None:
                heappush(self._heads, (key if not down else _Falling(key), number, entry.value))
                self._rest[number] = (rows, following)
                return
        if following is not None and not self._is_past(following):
            self._opening.append((number, following))

    def _rest_of(self, number: int) -> tuple[Iterator[Row], bytes | None]:
        """What follows the first row of a partition, and where to go on after that."""
        return self._rest[number]

    def _is_past(self, key: bytes) -> bool:
        """Whether neither this key nor one that follows is asked for."""
        if self._down:
            return key < self.request.start
        return self.request.end is not None and key >= self.request.end

    def _take(self) -> None:
        """The first of the heads is the next row."""
        key, number, value = self._heads[0]
        if self._taken is None or not self._taken(key):
            size = len(key) + len(value)
            if len(self.keys) >= self._limit or (self.keys and self._bytes + size > SCAN_BYTES_MAX):
                self.more = self.done = True
                return
            self.keys.append(bytes(key) if self._down else key)
            self.values.append(value)
            self._bytes += size
        rows, following = self._rest_of(number)
        for further, entry in rows:
            if entry.value is not None:
                heapreplace(self._heads, (further if not self._down else _Falling(further), number, entry.value))
                return
        heappop(self._heads)
        if following is not None and not self._is_past(following):
            self._opening.append((number, following))
