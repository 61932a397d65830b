"""What a map changes of the partitions of one node, found in one walk over them, before it takes effect.

There may be very many, and a map takes effect in one step. To look at each is most of what that would cost, so whatever the
rules are told of it (`rebalance.rule.NewMap`), and the operator, is found while a partition is looked at; and that is done
in pieces, for it follows from the two maps alone. What is left to the step is to say so to those that changed. Only whether
a partition that this node leads is served by then is not known before.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TypeAlias

from rebalance.partition import NOBODY, LocalPartition, Receivers, Role, become
from rebalance.rule import NewMap
from rebalance.table import Placement, Topology
from wal.ids import NodeId

AT_ONCE = 2_048
"""Partitions that are looked at in one piece."""
LOOKED_OF_WORK = 4
"""So many that are looked at are as much work as one thing that is decided, whatever a map says of them."""
CHANGED_OF_WORK = 8
"""And so many of which it says something else."""
_NOBODY: tuple[NodeId, ...] = ()
Group: TypeAlias = tuple[tuple[NodeId, ...], tuple[NodeId, ...], Receivers]
"""Who is waited for, and who is not, in a partition (`rebalance.partition.LocalPartition`)."""


def group_of(placement: Placement, node: NodeId, pending: Container[NodeId] = ()) -> Group:
    """It, of a partition that `node` leads; `pending`: copies that it has vouched for."""
    needed = tuple(n for n in placement.owners if n != node and (n in placement.in_sync or n in pending))
    moving = tuple(n for n in placement.copies if n != node and n not in needed)
    return needed, moving, (tuple(sorted(needed)), tuple(sorted(moving)))


class Walked(NewMap, frozen=True):
    """What was found, and how many partitions have another primary, another in-sync set, or no copy in sync at all."""

    primaries: int = 0
    in_sync: int = 0
    lost: int = 0


class Placed:
    """What a map makes of all partitions of `node`; None: it does not list this life. True until another takes effect.

    `anew`: whatever a partition was, it is another thing now, because this life was not listed before, or is no more.
    """

    def __init__(
        self, partitions: Sequence[LocalPartition], topology: Topology, node: NodeId | None, *, anew: bool
    ) -> None:
        self.partitions = partitions
        self.topology = topology
        self.node = node
        self.anew = anew
        self.looked = 0  # so many of them
        self.added: list[LocalPartition] = []  # one group after the other, and none goes
        self.moved: list[LocalPartition] = []
        self._becomes: list[tuple[Placement, Role]] = []  # of each that moved
        self._out: list[tuple[NodeId, ...]] = []
        self._changed: list[LocalPartition] = []
        self._named: list[LocalPartition] = []  # that it leads by this map, and may not serve yet
        self._new: dict[int, None] = {}  # those of them that are new to it
        self._concern: list[LocalPartition] = []  # of those that moved, those that it leads by either map
        self._groups: list[Group] = []  # of each of those, where it has vouched for nobody
        self._grouped: dict[object, Group] = {}
        self._raised: list[LocalPartition] = []
        self._left: list[LocalPartition] = []
        self._gone: list[LocalPartition] = []
        self.ending: dict[int, None] = {}  # where it has led, and leads no more, or in another epoch
        self._no_more: dict[tuple[tuple[NodeId, ...], tuple[NodeId, ...]], tuple[NodeId, ...]] = {}
        self._primaries = self._in_sync = self._lost = 0

    @property
    def is_found(self) -> bool:
        """Whether all of them were looked at."""
        return self.looked == len(self.topology.placements)

    def look_on(self) -> int:
        """Look at the next ones; how much work it was."""
        begin, known, moved = self.looked, len(self.partitions), len(self.moved)
        some = self.topology.placements[begin : begin + AT_ONCE]
        end = self.looked = begin + len(some)
        self._look_at(self.partitions[begin:end], some, anew=self.anew)
        if end > known:
            first = max(begin, known)
            added = [LocalPartition(number, self.topology.placements[number]) for number in range(first, end)]
            self._look_at(added, some[first - begin :], anew=True)
            self.added += added
        return len(some) // LOOKED_OF_WORK + (len(self.moved) - moved) // CHANGED_OF_WORK

    def _look_at(self, partitions: Sequence[LocalPartition], placements: Sequence[Placement], *, anew: bool) -> None:
        node, promoting, nothing, no_more = self.node, Role.PROMOTING, Role.NONE, self._no_more
        for local, placement in zip(partitions, placements, strict=False):
            before, was_role = local.placement, local.role
            self._lost += placement.lost
            if not anew and (before is placement or before == placement):
                if was_role is promoting:
                    self._named.append(local)
                continue
            role, is_new = local.becomes(placement, node)
            self.moved.append(local)
            self._becomes.append((placement, role))
            was, now, nodes = before.in_sync, placement.in_sync, _NOBODY
            if was != now:
                self._in_sync += 1
                found = no_more.get((was, now))
                nodes = no_more[was, now] = tuple(n for n in was if n not in now) if found is None else found
            self._out.append(nodes)
            if before.lost is not placement.lost or (not placement.lost and before.owners[0] != placement.owners[0]):
                self._primaries += 1
            if is_new:
                self._changed.append(local)
            if role.leads:
                self._concern.append(local)
                self._groups.append(self._group_of(placement))
                self._named.append(local)
                if not was_role.in_sync:
                    self._raised.append(local)
                if is_new:
                    self._new[local.number] = None
                    if was_role.leads:
                        self.ending[local.number] = None
            elif was_role.leads:
                self._left.append(local)
                self.ending[local.number] = None
                self._concern.append(local)
                self._groups.append(NOBODY)
            if role is nothing:
                self._gone.append(local)

    def _group_of(self, placement: Placement) -> Group:
        whole = placement.owners == placement.in_sync and not placement.asynchronous  # how it nearly always is
        key = placement.owners if whole else (placement.owners, placement.in_sync, placement.asynchronous)
        known = self._grouped.get(key)
        if known is None:
            assert self.node is not None
            known = self._grouped[key] = group_of(placement, self.node)
        return known

    def take(self, group: Callable[[LocalPartition], None], vouched: Container[int], *, light: bool) -> Walked:
        """Let the map take effect. Of those that this node leads now, or did, and in which it has `vouched` for copies,
        `group` is to find out who is waited for.

        What is being promoted already is told again, unless the map is a `light` one.
        """
        become(zip(self.moved, self._becomes, strict=True))
        for local, known in zip(self._concern, self._groups, strict=True):
            local.needed, local.moving, local.receivers = known
            if local.number in vouched:
                group(local)
        new, promoting, version = self._new, Role.PROMOTING, self.topology.version.number
        promoted = [h for h in self._named if h.role is promoting and (not light or h.number in new)]
        for local in promoted:
            local.since = version
        return Walked(
            moved=self.moved,
            changed=self._changed,
            promoted=promoted,
            raised=self._raised,
            out=self._out,
            left=self._left,
            gone=self._gone,
            primaries=self._primaries,
            in_sync=self._in_sync,
            lost=self._lost,
        )


def what_changed(before: Topology | None, after: Topology, new: Walked) -> str:
    """In which way a map differs from the one before it, for the operator; nothing if it is the first one."""
    if before is None:
        return ""
    old = {m.node: (m.allocation, m.incarnation) for m in before.members}
    lives = {m.node: (m.allocation, m.incarnation) for m in after.members}
    said = [f"{node} is out" for node in old if node not in lives]
    said += [f"{node} is in" for node in lives if node not in old]
    said += [f"{node} is another life" for node in lives if node in old and old[node] != lives[node]]
    if before.baseline != after.baseline:
        said.append(f"baseline {','.join(after.baseline)}")
    said += [f"a group of {group.told}" for group in after.all_groups if group not in before.all_groups]
    if before.namespaces != after.namespaces:
        changed = [name for name, stands in after.namespaces.items() if stands != before.namespaces.get(name)]
        said += [f"namespace {name} {after.namespaces[name].stands}" for name in changed]
    if before.migrations != after.migrations:
        paused, limit = after.migrations.paused, after.migrations.bytes_per_second
        said.append(f"migrations paused: {paused}, limited to {f'{limit} bytes/s' if limit else 'nothing'}")
    counts = {"primaries moved": new.primaries, "in-sync sets changed": new.in_sync, "LOST": new.lost}
    return "; ".join(said + [f"{what}: {count}" for what, count in counts.items() if count])
