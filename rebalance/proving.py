"""Whether the rows of this node's copies are still those that were written: they are read, a few at a time, all the while.

A store keeps the digest of what it holds of each fragment (`rebalance.contents`), and a checkpoint moves it on by what it
changes. A row that is lost or forged on the disk leaves no trace in that: its copy goes on to tell the right digest. So
the rows are read, summed up and held against it, fragment after fragment and again from the beginning (`step`); and at
once, where somebody wants to know (`ask`). What was applied since the last checkpoint is in memory, and not read.
"""

from __future__ import annotations

from rebalance.contents import Reading
from rebalance.partition import Role
from rebalance.ports import LITTLE, Node
from wal.ids import Fragment, fragment_name
from wal.probe import probe

ROWS_A_STEP = 1_000
"""Of a fragment that nobody has asked about; a fragment and a partition that are passed weigh as much as a row."""
ROWS_AT_ONCE = 500
ASKED_MAX = 64
"""So many fragments wait to be read by order, or for somebody to hear what came of it; whoever has no room asks again."""


class Proving:
    """What is known by reading them of the rows of one node's copies, in sync or asynchronous."""

    def __init__(self, core: Node) -> None:
        self._core = core
        self._asked: dict[Fragment, None] = {}
        self.proven: dict[Fragment, None] = {}  # of these, until `take` has told it
        self._answering: tuple[Fragment, Reading] | None = None
        self._going_on = False
        self._passing: tuple[Fragment, Reading] | None = None  # what nobody has asked about
        self._left: list[Fragment] = []  # of the partition that is passed
        self._next = 0
        self.disproved: dict[Fragment, str] = {}  # and what was found
        self.rows = 0  # read in this life

    def __len__(self) -> int:
        return len(self._asked)

    def ask(self, name: Fragment) -> None:
        """Read this one next; `take` tells what came of it."""
        known = name in self._asked or name in self.proven or name in self.disproved
        if not known and len(self._asked) + len(self.proven) < ASKED_MAX and self._readable(name):
            self._asked[name] = None
            self._later()

    def take(self, name: Fragment) -> bool | None:
        """Whether the rows of a fragment prove its digest; None if it was not read since it was asked. Yes is said once."""
        if name in self.disproved:
            return False
        return True if self.proven.pop(name, 0) is None else None

    def forget(self) -> None:
        """Another map: whoever asked asks again, and what is not in sync any more will be made anew."""
        self._asked, self.proven, self._answering = {}, {}, None
        self.disproved = {name: why for name, why in self.disproved.items() if self._readable(name)}

    def step(self, partitions: int) -> None:
        """Read on, wherever that is, and pass so many partitions at most; where there are many rows, it takes longer."""
        core, left = self._core, ROWS_A_STEP
        if self.disproved:
            self.disproved = {name: why for name, why in self.disproved.items() if self._readable(name)}
        while left > 0:
            if self._passing is None:
                left -= 1
                if self._left:
                    name = self._left.pop()
                    if self._readable(name):
                        self._passing = (name, core.replica.store.prove(name))
                elif partitions > 0:
                    partitions -= 1
                    self._next = (self._next + 1) % len(core.local)
                    self._left = [(ns, self._next) for ns in core.replica.partition(self._next).fragments]
                else:
                    return
                continue
            name, reading = self._passing
            left -= self._read(reading, min(left, ROWS_AT_ONCE))
            if reading.done or not self._readable(name):
                self._passing = None
                self._conclude(name, reading)

    def _readable(self, name: Fragment) -> bool:
        """Whether it is a copy that counts, or one that somebody may read: any other one is not believed anyway."""
        core = self._core
        fragment = core.replica.fragments.get(name)
        if fragment is None or fragment.loading or not core.serving:
            return False
        local = core.local[name[1]]
        return local.in_sync or local.role is Role.ASYNC

    def _read(self, reading: Reading, rows: int) -> int:
        work = reading.step(rows)
        self.rows += work
        self._core.work += work + 1
        return work + 1

    def _conclude(self, name: Fragment, reading: Reading) -> bool | None:
        """What came of it: None if it has to be read once more."""
        if not reading.done or not self._readable(name):
            return None
        found = reading.proves
        if found is None:
            probe("proving.overtaken_by_a_checkpoint")
        elif found:
            self.disproved.pop(name, None)
        else:
            probe("proving.disproved")
            if name not in self.disproved:
                self._core.note(f"the rows of {fragment_name(name)} are not those that were written here: {reading.found}")
            self.disproved[name] = reading.found
        return found

    def _later(self) -> None:
        if not self._going_on and self._asked:
            self._going_on = True
            self._core.put_off(self._go_on)

    def _go_on(self) -> None:
        """Do a piece of what was asked."""
        core = self._core
        self._going_on = False
        enough = core.work + LITTLE
        while self._asked and core.work < enough:
            name = next(iter(self._asked))
            if self._answering is None or self._answering[0] != name:
                self._answering = (name, core.replica.store.prove(name))
            reading = self._answering[1]
            self._read(reading, ROWS_AT_ONCE)
            if reading.done:
                self._answering = None
                del self._asked[name]
                if self._conclude(name, reading):
                    self.proven[name] = None
        self._later()
