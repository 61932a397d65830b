"""What scans found at the beginning of a range, partition by partition, for the next ones that ask for the same.

Many who take from one range ask for its first rows over and over, and each time few of its partitions have changed. Nothing
comes into a fragment without its counter, as `engine.data.ranges` has it: so what was read of one whose counter had no gap
is what is there for as long as nothing higher is applied. A delete that is forgotten moves no counter, and is no row.
What else a row is to be asked (whether it has expired, whether it is in doubt) is asked by each scan anew.

That holds of a primary. Another copy may be set back, and come to the same counter by another history; so what was found is
kept for who reads from a primary, and until the next map. A write costs it nothing. A range that is asked for once is not
kept, so that who walks through all rows pushes nobody out.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from engine.state.replica import Replica
from engine.state.store import ROW_OVERHEAD_BYTES, Page
from rebalance.fragment import FragmentState
from wal.ids import Namespace
from wal.probe import probe

LOOKS_MAX = 8
LOOK_BYTES_MAX = 4 << 20
PAGE_BYTES_MAX = 8 << 10
"""What is found in one partition and weighs more is not kept: to read it again costs little beside telling it."""
ASKED_MAX = 64
"""So many ranges that were asked for once are remembered."""
PAGE_OVERHEAD_BYTES = 250

Shape: TypeAlias = tuple[Namespace, bytes, int, bool]
"""What pages are alike in: of which namespace, from which key on, how many rows at a time, and whether downwards."""


class _Found(NamedTuple):
    """What was found in one partition; `fragment`: None if it did not exist."""

    fragment: FragmentState | None
    counter: int
    page: Page


class Look:
    """What was found of one shape, by partition. Each is what a page would be that is read now, without its deletes."""

    __slots__ = ("_bytes", "_found", "_namespace", "_replica")

    def __init__(self, replica: Replica, namespace: Namespace) -> None:
        self._replica = replica
        self._namespace = namespace
        self._found: dict[int, _Found] = {}
        self._bytes = 0

    def page(self, number: int) -> Page | None:
        """What is there now, if that is known."""
        found = self._found.get(number)
        if found is None:
            return None
        known, counter, page = found
        fragment = self._replica.fragments.get((self._namespace, number))
        if fragment is known and (fragment is None or fragment.counter.highest_applied == counter):
            return page
        del self._found[number]
        self._bytes -= _weight(page)
        return None

    def keep(self, number: int, start: bytes, page: Page) -> None:
        """This was read of a partition just now, from `start` on."""
        fragment = self._replica.fragments.get((self._namespace, number))
        if page.next == start or (fragment is not None and fragment.counter.ranges):
            return  # its rows were not in order yet; or what fills a gap would not show
        page = Page([row for row in page.rows if row[1].value is not None], page.next, 0)
        weight = _weight(page)
        if weight > PAGE_BYTES_MAX or self._bytes + weight > LOOK_BYTES_MAX:
            return
        assert number not in self._found, "what is known is not read again"
        self._found[number] = _Found(fragment, fragment.counter.lwm if fragment is not None else 0, page)
        self._bytes += weight

    def forget(self) -> None:
        """Nothing of it is known any more."""
        self._found.clear()
        self._bytes = 0


class Looks:
    """What one node keeps of what scans found. Invariant: at most `LOOKS_MAX` looks of at most `LOOK_BYTES_MAX` each."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._looks: dict[Shape, Look] = {}  # what was used last comes last, as below
        self._asked: dict[Shape, None] = {}

    def at(self, shape: Shape) -> Look | None:
        """What is known of a shape that a scan asks for; None if nobody has asked for it lately."""
        look = self._looks.pop(shape, None)
        if look is None:
            if shape not in self._asked:
                self._asked[shape] = None
                if len(self._asked) > ASKED_MAX:
                    del self._asked[next(iter(self._asked))]
                return None
            probe("look.kept")
            del self._asked[shape]
            look = Look(self._replica, shape[0])
            if len(self._looks) >= LOOKS_MAX:
                self._looks.pop(next(iter(self._looks))).forget()
        self._looks[shape] = look
        return look

    def forget(self) -> None:
        """There is another map: copies may have become others."""
        for look in self._looks.values():
            look.forget()
        self._looks, self._asked = {}, {}


def _weight(page: Page) -> int:
    """About how many bytes are kept with a page."""
    return PAGE_OVERHEAD_BYTES + sum(ROW_OVERHEAD_BYTES + len(key) + len(entry.value or b"") for key, entry in page.rows)
