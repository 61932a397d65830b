"""What the operator ordered of namespaces: settings and copies of their own, or that one is dropped.

An order is passed on, kept, repeated and void as every one of them is (`engine.cluster.orders`). It names the version that
said what it replaces, so of two operators who saw the same the second is told that it stands otherwise now.

A drop is two maps. By the first nobody reads or writes the namespace, and each primary deletes what it leads of it
(`engine.data.dropping`). When all primaries have said under one and the same map that they lead nothing of it any more, the
second one says that it is gone. Who leads what changes only with the map, and then they are asked again.

To be given copies of its own is two maps as well. By the first, which brings the group if there is none yet, nobody reads
or writes it, and each primary looks whether anything is in it. If nothing is, the second one says that it is in that
group; else that it goes on as it was. So nothing is ever left behind in the partitions of another group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from engine.messages import Heartbeat, SetNamespace
from engine.protocol.limits import TTL_MS_MAX
from engine.turn.core import Core
from rebalance.namespaces import NAMESPACES_MAX, NOT_SAID, LossPolicy, NamespaceSettings, Stands, told_unusable
from rebalance.ports import MS
from rebalance.table import BACKUPS_MAX, Group, Topology
from wal.ids import NAME, NO_VERSION, TABLE_MAX, Namespace, NodeId, Version
from wal.probe import probe

ORDER_MS_MAX = 60_000
"""So long an order waits for its exchange."""


GROUPS_MAX = 28
"""As many as there are pairs of backups and asynchronous ones of which there may be 6 together."""


class LookedThrough(Protocol):
    """What a node knows of namespaces that are being dropped or made, where it is primary."""

    def gone(self) -> list[Namespace]:
        """Those of which it leads nothing."""

    def written(self) -> list[Namespace]:
        """Those that are being made, and of which it leads something."""


class NamespaceOrders:
    """The orders about namespaces that stand on one node, and what it heard of those that are being dropped or made."""

    def __init__(
        self,
        core: Core,
        *,
        pass_on: Callable[[SetNamespace], None],
        looked_through: LookedThrough,
    ) -> None:
        self.core = core
        self._pass_on = pass_on
        self.gone_here = looked_through.gone
        self.written_here = looked_through.written
        self._knows: dict[NodeId, bool] = {}  # who said that it knows of groups, or did not
        self._orders: dict[Namespace, tuple[SetNamespace, int]] = {}  # and until when
        self._gone: dict[NodeId, tuple[Version, list[Namespace]]] = {}  # who said under which map what it leads nothing of
        self._written: dict[NodeId, tuple[Version, list[Namespace]]] = {}  # the same of what it leads something of
        self._leaders: tuple[Topology | None, dict[int, dict[NodeId, None] | None]] = (None, {})  # of each group

    def give(self, order: SetNamespace) -> str:
        """Ask for it; why it cannot be, or nothing."""
        topology = self.core.topology
        if topology is None:
            return "the cluster is not formed yet"
        stands = topology.namespaces.get(order.name, NOT_SAID)
        if stands.since != order.seen:
            return (
                f"namespace {order.name!r} was changed meanwhile: this was asked of what version {order.seen} said, and "
                f"{stands.since} says something else; look at it again"
            )
        if not stands.usable and not (order.drop and stands.stands is Stands.DROPPING):
            return told_unusable(order.name, stands.stands)
        if order.name not in topology.namespaces and len(topology.namespaces) >= NAMESPACES_MAX:
            return (
                f"{len(topology.namespaces)} namespaces have settings of their own, or were dropped: expected at most "
                f"{NAMESPACES_MAX}; use the name of one that was dropped again"
            )
        if not order.drop and (problem := self._no_group(order, topology, stands)):
            return problem
        self._pass_on(order)
        return ""

    def _no_group(self, order: SetNamespace, topology: Topology, stands: NamespaceSettings) -> str:
        """Why a namespace cannot be in the group that it is to be in; or nothing."""
        wanted, groups = _wanted(order, topology, stands), topology.all_groups
        if wanted == groups[stands.group]:
            return ""
        if stands.stands is not Stands.DROPPED and order.name in self.core.replica.namespaces:
            return (
                f"namespace {order.name!r} was written with {groups[stands.group].told}: expected the same, and found "
                f"{wanted.told}; create another one and copy what is in it, or drop this one first"
            )
        if any(topology.placements[number].lost for number in topology.partitions_of(order.name)):
            return (
                f"nobody knows whether namespace {order.name!r} was written before, because partitions are LOST: bring "
                "their nodes back first, or let them begin again (`foreshore cluster reset-lost`)"
            )
        if wanted in groups:
            return ""
        if old := self._too_old(topology):
            return (
                f"a namespace with {wanted.told} would be of a new group, and {', '.join(old)} "
                f"{'is' if len(old) == 1 else 'are'} of a version that knows of none: upgrade all members first"
            )
        places = topology.partitions * (len(groups) + 1)
        if len(groups) >= GROUPS_MAX or places > TABLE_MAX:
            return (
                f"a namespace with {wanted.told} would be of a new group, and with {len(groups) + 1} of them there would "
                f"be {places} partitions: expected at most {GROUPS_MAX} groups and {TABLE_MAX} partitions; namespaces with "
                f"{', '.join(group.told for group in groups)} need none"
            )
        return ""

    def handle(self, order: SetNamespace) -> None:
        """An order came. One that stands is not replaced by another that was given on the same."""
        if not _can_be(order):
            probe("namespaces.order_of_nothing")
            return
        standing = self._orders.get(order.name)
        if standing is None or standing[0].seen != order.seen:
            self._orders[order.name] = order, self.core.now + ORDER_MS_MAX * MS

    def standing(self, topology: Topology) -> tuple[dict[Namespace, NamespaceSettings], list[Group]]:
        """Of which namespaces the next map is to say something else, and which groups it is to bring."""
        changes: dict[Namespace, NamespaceSettings] = {}
        groups = list(topology.all_groups)
        known = len(groups)
        for name, (order, until) in list(self._orders.items()):
            stands = topology.namespaces.get(name, NOT_SAID)
            if self.core.now > until or stands.since != order.seen or not stands.usable:
                probe("namespaces.void_order")
                del self._orders[name]
            elif name in topology.namespaces or len(topology.namespaces) + len(changes) < NAMESPACES_MAX:
                if (change := self._changed(order, topology, stands, groups)) is not None:
                    changes[name] = change
                else:
                    del self._orders[name]
        for name, stands in topology.namespaces.items():
            if stands.usable:
                continue
            making = stands.to if stands.stands is Stands.MAKING else None
            if making is not None and self._was_written(topology, name):
                probe("namespaces.made_in_vain")
                changes[name] = msgspec.structs.replace(stands, stands=Stands.THERE, to=None)
            elif self._is_gone(topology, name):
                changes[name] = making if making is not None else NamespaceSettings(stands=Stands.DROPPED)
        return changes, groups[known:]

    def _changed(
        self, order: SetNamespace, topology: Topology, stands: NamespaceSettings, groups: list[Group]
    ) -> NamespaceSettings | None:
        """What the next map says because of an order; a group that it needs is one of `groups` then. None: it cannot be."""
        if order.drop:
            return msgspec.structs.replace(stands, stands=Stands.DROPPING)
        wanted, loss = _wanted(order, topology, stands), LossPolicy(order.loss) if order.loss else stands.loss
        if wanted not in groups:
            if len(groups) >= GROUPS_MAX or topology.partitions * (len(groups) + 1) > TABLE_MAX or self._too_old(topology):
                return None
            groups.append(wanted)
        group = groups.index(wanted)
        after = NamespaceSettings(ttl_ms=order.ttl_ms, group=group, loss=loss)
        if group == stands.group:
            return after
        probe("namespaces.given_copies_of_its_own")
        return msgspec.structs.replace(stands, stands=Stands.MAKING, to=after)

    def heard(self, node: NodeId, beat: Heartbeat) -> None:
        """What a member says that it leads nothing of any more, under the map that is here; and that it knows of groups."""
        self._knows[node] = beat.groups
        if beat.dropped:
            self._gone[node] = beat.version, beat.dropped
        else:
            self._gone.pop(node, None)
        if beat.written:
            self._written[node] = beat.version, beat.written
        else:
            self._written.pop(node, None)

    def _too_old(self, topology: Topology) -> list[NodeId]:
        """The members that were heard, and could not read a map with another group."""
        return [m.node for m in topology.members if not self._knows.get(m.node, True)]

    def _was_written(self, topology: Topology, name: Namespace) -> bool:
        """Whether a primary found anything in one that is being made."""
        heard = any(version == topology.version and name in names for version, names in self._written.values())
        return heard or name in self.written_here()

    def _is_gone(self, topology: Topology, name: Namespace) -> bool:
        """Whether every primary said so. What is LOST may come back with rows in it."""
        leaders = self._leaders_of(topology, name)
        if leaders is None:
            return False
        for node in leaders:
            here = (topology.version, self.gone_here()) if node == self.core.node else (NO_VERSION, [])
            version, names = self._gone.get(node, here)
            if version != topology.version or name not in names:
                return False
        return True

    def _leaders_of(self, topology: Topology, name: Namespace) -> dict[NodeId, None] | None:
        if self._leaders[0] is not topology:
            self._leaders = topology, {}
        known, numbers = self._leaders[1], topology.partitions_of(name)
        if numbers.start not in known:
            some = topology.placements[numbers.start : numbers.stop]
            known[numbers.start] = None if any(p.lost for p in some) else dict.fromkeys(p.owners[0] for p in some)
        return known[numbers.start]


def _can_be(order: SetNamespace) -> bool:
    """Whether it is an order that a node would pass on: those are looked at by `engine.protocol.limits`."""
    copies = max(order.backups, 0) + order.async_backups
    legal = NAME.fullmatch(order.name) is not None and order.ttl_ms <= TTL_MS_MAX
    return legal and order.backups >= -1 and copies <= BACKUPS_MAX and order.loss in ("", *LossPolicy)


def _wanted(order: SetNamespace, topology: Topology, stands: NamespaceSettings) -> Group:
    """The group in which a namespace is to be."""
    if order.backups < 0:
        return topology.all_groups[stands.group]
    return Group(order.backups, order.async_backups)
