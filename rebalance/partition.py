"""One partition on one node: its role there, by the committed map and by what this node has done since, and what it has.

```
                    it is named primary            its promotion is done
 NONE  LOST  -------------------------> PROMOTING -----------------------> PRIMARY <--- the next map leaves it here
 MOVING  BACKUP  ASYNC <---------------------------------------------------------    |                    |
        any of these, by any map: another is primary, the epoch is another,   `--> DRAINING -------'
        this life is not listed                an exchange or a step hands it over
```
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, TypeAlias

from rebalance.fragment import FragmentState
from rebalance.results import Results
from rebalance.table import Placement, Standing
from wal import records as r
from wal.ids import Fragment, Namespace, NodeId, TxId

Receivers: TypeAlias = tuple[tuple[NodeId, ...], tuple[NodeId, ...]]
"""(copies that are waited for, copies that are not)"""
NOBODY: tuple[tuple[NodeId, ...], tuple[NodeId, ...], Receivers] = (), (), ((), ())
"""The same of who leads nothing: needed, moving, receivers."""


class Role(Enum):
    """What one node is to one partition."""

    NONE = "-"  # it has no copy, or the map does not list this life
    LOST = "LOST"  # nobody has one in sync; this node was to
    MOVING = "MOVING"  # its copy is loading
    ASYNC = "ASYNC"  # its copy is asynchronous
    BACKUP = "OWNING"  # its copy is in sync, and another is primary
    PROMOTING = "PROMOTING"  # it is named primary, and owes a promotion before it serves
    PRIMARY = "PRIMARY"  # it serves
    DRAINING = "DRAINING"  # it serves what has begun; what is new must wait for the next primary

    def __init__(self, told: str) -> None:
        self.serves = told in ("PRIMARY", "DRAINING")
        self.leads = self.serves or told == "PROMOTING"
        self.in_sync = self.leads or told == "OWNING"  # among those that have everything
        self.follows = told in ("MOVING", "ASYNC")  # it gets every write, and is not waited for


_BY_STATE = {
    Standing.NONE: Role.NONE,
    Standing.LOST: Role.LOST,
    Standing.MOVING: Role.MOVING,
    Standing.ASYNC: Role.ASYNC,
    Standing.OWNING: Role.BACKUP,
}


_PRIMARY, _PROMOTING, _BACKUP, _NONE = Role.PRIMARY, Role.PROMOTING, Role.BACKUP, Role.NONE  # of very many partitions


class LocalPartition:
    """A local partition: what this node is to it under the committed map, its role, and whom it leads.

    `needed` are the other in-sync copies, whose disks an acknowledgement waits for; `moving` the copies that get every
    write and are not waited for, asynchronous ones among them. `since` is the map (`Version.number`) by which it became
    primary for the last time.
    """

    __slots__ = ("epoch", "moving", "needed", "number", "placement", "receivers", "role", "since")

    def __init__(self, number: int, placement: Placement) -> None:
        self.number = number
        self.placement = placement
        self.epoch = placement.epoch
        self.role = Role.NONE
        self.since = 0
        self.needed, self.moving, self.receivers = NOBODY

    @property
    def mine(self) -> bool:
        """Whether this node is the primary, serving or not."""
        return self.role.leads

    @property
    def active(self) -> bool:
        """Whether this node is the primary, and serves."""
        return self.role.serves

    @property
    def follows(self) -> bool:
        """Whether this node's copy gets every write and is not waited for: it asks its primary for what it lacks."""
        return self.role.follows

    @property
    def in_sync(self) -> bool:
        """Whether the map lists this node's copy among those that have everything."""
        return self.role.in_sync

    def becomes(self, placement: Placement, node: NodeId | None) -> tuple[Role, bool]:
        """What it will be to `node` when a map takes effect, and whether it, the primary or the epoch is new.

        PRIMARY where this node leads on: it serves then if it serves by then.
        """
        old, before = self.role, self.placement
        same = self.epoch == placement.epoch
        leads = None if placement.lost else placement.owners[0]
        mine = node is not None and leads == node  # it is in sync, then
        if mine:
            role = _PRIMARY if same and old.leads else _PROMOTING
        elif node is None:
            role = _NONE
        elif leads is not None and node in placement.in_sync:  # how it nearly always is
            role = _BACKUP
        else:
            role = _BY_STATE[placement.standing_of(node)]
        if not same or old.leads is not mine or (not mine and role is not old):
            return role, True
        return role, leads != (None if before.lost else before.owners[0])

    def activate(self) -> None:
        """Its promotion is done: the partition serves."""
        assert self.role is Role.PROMOTING, f"partition {self.number} is {self.role.value}: no promotion of it was due"
        self.role = Role.PRIMARY

    def hand_over(self) -> None:
        """An exchange is about to give a partition that serves to another primary."""
        if self.role is Role.PRIMARY:
            self.role = Role.DRAINING

    def keep(self) -> None:
        """... and did not."""
        if self.role is Role.DRAINING:
            self.role = Role.PRIMARY


def become(changes: Iterable[tuple[LocalPartition, tuple[Placement, Role]]]) -> None:
    """Partitions are that now: all that a map changes, which may be very many, in its one step.

    A primary that stays in its epoch goes on serving; one that was about to hand over keeps the partition after all.
    """
    for local, (placement, role) in changes:
        serves_not = role is _PRIMARY and not local.role.serves
        local.role, local.placement, local.epoch = _PROMOTING if serves_not else role, placement, placement.epoch


class PartitionState:
    """What a node has of one partition beside its fragments: transactions in doubt, and answers that were given.

    `epoch` is the newest epoch this copy has taken part in; records of another one are not for it.
    """

    __slots__ = ("epoch", "fragments", "number", "prepared", "results")

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch = 0
        self.fragments: dict[Namespace, FragmentState] = {}
        self.prepared: dict[TxId, r.Prepare] = {}
        self.results = Results()

    @property
    def prepared_bytes(self) -> int:
        """About how many bytes what is prepared here writes."""
        return sum(map(bytes_prepared, self.prepared.values()))

    # Of what is prepared there may be very much, so these call nothing for each, not even `Write.end`.

    def reserved(self) -> dict[Namespace, int]:
        """Up to where what is prepared here holds counters, by namespace."""
        ends: dict[Namespace, int] = {}
        for prepare in self.prepared.values():
            for write in prepare.writes:
                namespace, end = write.namespace, write.start + (write.closed or len(write.keys))
                if namespace not in ends or ends[namespace] < end:
                    ends[namespace] = end
        return ends

    def is_prepared(self, namespace: Namespace, start: int) -> bool:
        """Whether something of it begins at a counter of a namespace. As votes come in order, it is one of the first."""
        for prepare in self.prepared.values():
            for write in prepare.writes:
                if write.start == start and write.namespace == namespace:
                    return True
        return False

    def prepared_at(self, namespace: Namespace, low: int, high: int) -> list[tuple[TxId, r.Prepare]]:
        """What of it holds some of the counters (low, high] of a namespace."""
        return [
            (tx, prepare)
            for tx, prepare in self.prepared.items()
            for write in prepare.writes
            if write.start < high and write.namespace == namespace and write.start + (write.closed or len(write.keys)) > low
        ]


def spans_of(writes: Sequence[r.Write]) -> dict[Fragment, tuple[int, int]]:
    """Between which counters some writes lie, by fragment."""
    found: dict[Fragment, tuple[int, int]] = {}
    for write in writes:
        low, high = found.get(write.fragment, (write.start, write.end))
        found[write.fragment] = min(low, write.start), max(high, write.end)
    return found


class _Named(ItemsView[Fragment, FragmentState]):
    """All fragments with their names, without looking each of them up again."""

    __slots__ = ("_partitions",)

    def __init__(self, fragments: Fragments) -> None:
        super().__init__(fragments)
        self._partitions = fragments.partitions

    def __iter__(self) -> Iterator[tuple[Fragment, FragmentState]]:
        for number, state in self._partitions.items():
            for namespace, fragment in state.fragments.items():
                yield (namespace, number), fragment


class Fragments(Mapping[Fragment, FragmentState]):
    """All fragments of these partitions, by name."""

    __slots__ = ("partitions",)

    def __init__(self, partitions: Mapping[int, PartitionState]) -> None:
        self.partitions = partitions

    def get(self, name: Fragment, default: Any = None) -> Any:
        """The state of one."""
        state = self.partitions.get(name[1])
        return default if state is None else state.fragments.get(name[0], default)

    def __contains__(self, name: Any) -> bool:
        return self.get(name) is not None

    def __getitem__(self, name: Fragment) -> FragmentState:
        return self.partitions[name[1]].fragments[name[0]]

    def __iter__(self) -> Iterator[Fragment]:
        return ((namespace, number) for number, state in self.partitions.items() for namespace in state.fragments)

    def __len__(self) -> int:
        return sum(len(state.fragments) for state in self.partitions.values())

    def items(self) -> ItemsView[Fragment, FragmentState]:
        """Each with its name."""
        return _Named(self)


PREPARED_MAX = 500
"""So many votes are told, taken or begun with at once; more go by pieces, in whichever order they come."""


def bytes_prepared(prepare: r.Prepare) -> int:
    """About how many bytes it writes."""
    return sum(sum(map(len, write.keys)) + sum(map(len, filter(None, write.values))) for write in prepare.writes)
