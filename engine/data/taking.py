"""Which records of a batch a copy takes, and which it passes over, by what it is to their partitions.

The batch says what its primary decided; whether that is the primary by the map that is here, and whether the copy is far
enough to take what follows, is found for each record.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.data.concerns import about_one, claims_of, may_come_before
from engine.turn.core import Core
from rebalance.partition import Role
from wal import records as r
from wal.ids import NodeId
from wal.probe import probe


class Taking:
    """The copies of one node, as they hear of batches."""

    def __init__(self, core: Core, demanded: Callable[[int], bool], passes_over: Callable[[int], bool]) -> None:
        self.core = core
        self._demanded = demanded  # whether the first supply of a partition is on its way to this node
        self._passes_over = passes_over  # a copy that follows takes nothing now: its supply will bring it

    def of(self, sender: NodeId, records: list[r.Record]) -> list[r.Record] | int | None:
        """The records of a batch that this node takes; a partition whose supply comes first; or None to have it sent again.

        A copy that is in sync takes all or nothing. A MOVING copy passes over what concerns partitions whose epoch it
        has not adopted, or which wait to be demanded: their supply will bring it. While the first batch of that
        supply is on its way it takes nothing.
        A copy that a light step let go passes over what its primary, who has not heard of that, still says to it: by the
        map that is decided nobody relies on it.
        """
        core = self.core
        taken: list[r.Record] = []
        started: dict[int, int] = {}
        places, held, backup, take = core.local, core.replica.partitions, Role.BACKUP, taken.append
        for record in records:
            about = about_one(record)
            if about is not None and (number := about.partition) < len(places):
                place, had = places[number], held.get(number)
                steady = place.role is backup and had is not None and about.epoch == had.epoch == place.epoch
                if steady and place.placement.owners[0] == sender:  # where it is a backup there is a primary
                    take(record)  # how it nearly always is
                    continue
            if not (claims := claims_of(record)):
                core.note(f"{sender} replicated a record that only a node itself may log: {r.kind_of(record)}")
                return None
            passed, gone = False, 0
            for partition, epoch in claims:
                local = core.local[partition] if partition < len(core.local) else None
                if local is None or local.mine or local.role is Role.LOST or local.placement.primary != sender:
                    probe("replicate.refused_not_primary")
                    return None
                if local.role is Role.NONE:
                    probe("replicate.copy_was_let_go")
                    gone += 1
                    continue
                if (known := started.get(partition)) is None:
                    known = core.replica.partition(partition).epoch
                if local.role is Role.BACKUP and epoch == known == local.epoch:
                    continue
                if local.follows:
                    if self._demanded(partition):
                        return partition  # it may begin with a clearing, which would wipe what comes now
                    if known != local.epoch or self._passes_over(partition):
                        passed = True  # what came while it waits would lie in memory, behind a gap, for as long as that
                    elif epoch != known and not isinstance(record, r.History):
                        passed = True  # an epoch that began before this copy adopted it
                elif isinstance(record, r.EpochStart):
                    if epoch > local.epoch:
                        return None
                    started[partition] = max(epoch, known)
                elif epoch != known and not may_come_before(record, epoch, local.epoch):
                    probe("replicate.refused_epoch")
                    return None
            if 0 < gone < len(claims):
                return None  # some of it is for copies that are here, and none may be passed over for the others' sake
            if not passed and not gone:
                taken.append(record)
        return taken
