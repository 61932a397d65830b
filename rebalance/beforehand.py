"""What the partitions that a node leads contain, summed up while a member is away, so that it is known when it returns.

Where nothing was changed, that is what a return waits for most: each row that was written since the last checkpoint is
hashed before its copy is compared. While the member is away nobody waits for it. So each primary goes through its
partitions then, little by little, and keeps what they add up to, and so it does with what it sums up for a comparison. In
the epoch of one primary a fragment contains the same whenever it stands at the same counter: what was written since
then is summed up anew, and no write has to say so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rebalance.by_fragment import ByFragment
from rebalance.comparing import Told, contents_now, sum_up
from rebalance.fragment import FragmentState
from rebalance.messages import Contents
from rebalance.partition import LocalPartition
from rebalance.ports import LITTLE, WORK_MAX, Node, leads, may_act
from wal.ids import Digest
from wal.probe import probe

ROWS_LEAST = 16
"""Where fewer rows of a fragment were written since a checkpoint nothing is kept of it: it is summed up as soon."""
ROWS_MOST = 50_000
"""Where more were, it is not summed up beforehand: to list them is a part of a turn, and who returns waits for more."""
KEPT_MAX = 20_000
"""Of so many fragments at most."""


class _Kept(NamedTuple):
    """What a fragment contained, and where it stood."""

    epoch: int
    lwm: int
    history: Digest
    contents: Digest


class Beforehand:
    """What one node's partitions contain, as far as that is known."""

    def __init__(self, core: Node) -> None:
        self._core = core
        self._kept = ByFragment[_Kept]()
        self._count = 0
        self._away = False  # somebody is, and partitions are gone through
        self._at = 0  # the next one
        self._under_way = False

    def of(self, fragment: FragmentState) -> Digest | None:
        """What a fragment contains, if that is known."""
        kept = self._kept.get(fragment.name) if self._count else None
        if kept is None or (kept.lwm, kept.history) != (fragment.counter.lwm, fragment.digest) or fragment.counter.ranges:
            return None
        core, number = self._core, fragment.name[1]
        known = leads(core, number) is not None and core.replica.partition(number).epoch == kept.epoch
        return kept.contents if known else None

    def sum_up(self, partition: int, told: Told, *, hurried: bool = True) -> None:
        """As `comparing.sum_up`, of what is not known."""
        core = self._core
        epoch = core.replica.partition(partition).epoch

        def found(contents: list[Contents] | None) -> None:
            if contents is not None and core.replica.partition(partition).epoch == epoch:
                self._keep(partition, epoch, contents)
            told(contents)

        sum_up(core, partition, found, changed_max=None if hurried else ROWS_MOST, known=self.of)

    def now(self, partition: int) -> list[Contents] | None:
        """As `comparing.contents_now`, of what is not known, as much as a turn may do."""
        found = contents_now(self._core, partition, most=WORK_MAX, known=self.of)
        if found is not None:
            self._keep(partition, self._core.replica.partition(partition).epoch, found)
        return found

    def _keep(self, number: int, epoch: int, contents: Iterable[Contents]) -> None:
        core = self._core
        if leads(core, number) is None:
            return
        for found in contents:
            name = (found.namespace, number)
            if found.ranges or core.replica.store.changed(name) < ROWS_LEAST:
                continue
            new = name not in self._kept
            if new and self._count >= KEPT_MAX:
                return
            self._count += new
            self._kept[name] = _Kept(epoch, found.lwm, found.history, found.digest)

    def switch(self, moved: Iterable[LocalPartition]) -> None:
        """A new map: if somebody is away by it, what this node leads is gone through; else what is whole is let go of."""
        topology = self._core.topology
        assert topology is not None
        self._away = any(topology.member(node) is None for node in topology.baseline)
        self.begin()
        whole = [local for local in moved if not (local.mine and local.moving)] if self._count and not self._away else []
        for name in [(namespace, local.number) for local in whole for namespace in self._kept.of(local.number)]:
            del self._kept[name]
            self._count -= 1

    def begin(self) -> None:
        """Go through all that this node leads, if somebody is away: there may be more of it than before."""
        self._at = 0
        if self._away and not self._under_way:
            self._under_way = True
            self._core.put_off(self._go_on)

    def _go_on(self) -> None:
        """Look at the next partitions, and sum one up; nobody waits for that."""
        core = self._core
        self._under_way = self._away and may_act(core, core.fence)
        if not self._under_way:
            return
        while self._at < len(core.local) and core.work < LITTLE:
            number, self._at = self._at, self._at + 1
            core.work += 1
            if self._wants(number):
                probe("contents.summed_up_beforehand")
                self.sum_up(number, lambda _: core.put_off(self._go_on), hurried=False)
                return
        self._under_way = self._at < len(core.local)
        if self._under_way:
            core.put_off(self._go_on)

    def _wants(self, number: int) -> bool:
        """Whether something of a partition takes long to sum up, and is not known."""
        core = self._core
        if leads(core, number) is None or self._count >= KEPT_MAX:
            return False
        fragments = core.replica.partition(number).fragments.values()
        core.work += len(fragments)
        changed = core.replica.store.changed
        takes_long = [f for f in fragments if ROWS_LEAST <= changed(f.name) <= ROWS_MOST]
        return any(self.of(fragment) is None and not fragment.counter.ranges for fragment in takes_long)
