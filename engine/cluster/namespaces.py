"""What the operator ordered of namespaces: settings of their own, or that one is dropped.

An order is passed on, kept, repeated and void as every one of them is (`engine.cluster.orders`). It names the version that
said what it replaces, so of two operators who saw the same the second is told that it stands otherwise now.

A drop is two maps. By the first nobody reads or writes the namespace, and each primary deletes what it leads of it
(`engine.data.dropping`). When all primaries have said under one and the same map that they lead nothing of it any more, the
second one says that it is gone. Who leads what changes only with the map, and then they are asked again.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.messages import Heartbeat, SetNamespace
from engine.turn.core import Core
from rebalance.namespaces import NAMESPACES_MAX, NOT_SAID, NamespaceSettings, Stands, told_dropping
from rebalance.ports import MS
from rebalance.table import Topology
from wal.ids import NO_VERSION, Namespace, NodeId, Version
from wal.probe import probe

ORDER_MS_MAX = 60_000
"""So long an order waits for its exchange."""


class NamespaceOrders:
    """The orders about namespaces that stand on one node, and what it heard of those that are being dropped."""

    def __init__(
        self,
        core: Core,
        *,
        pass_on: Callable[[SetNamespace], None],
        gone: Callable[[], list[Namespace]],
    ) -> None:
        self.core = core
        self._pass_on = pass_on
        self.gone_here = gone
        self._orders: dict[Namespace, tuple[SetNamespace, int]] = {}  # and until when
        self._gone: dict[NodeId, tuple[Version, list[Namespace]]] = {}  # who said under which map what it leads nothing of
        self._leaders: tuple[Topology | None, dict[NodeId, None] | None] = (None, None)

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
        if stands.stands is Stands.DROPPING and not order.drop:
            return told_dropping(order.name)
        if order.name not in topology.namespaces and len(topology.namespaces) >= NAMESPACES_MAX:
            return (
                f"{len(topology.namespaces)} namespaces have settings of their own, or were dropped: expected at most "
                f"{NAMESPACES_MAX}; use the name of one that was dropped again"
            )
        self._pass_on(order)
        return ""

    def handle(self, order: SetNamespace) -> None:
        """An order came. One that stands is not replaced by another that was given on the same."""
        standing = self._orders.get(order.name)
        if standing is None or standing[0].seen != order.seen:
            self._orders[order.name] = order, self.core.now + ORDER_MS_MAX * MS

    def standing(self, topology: Topology) -> dict[Namespace, NamespaceSettings]:
        """Of which namespaces the next map is to say something else."""
        changes: dict[Namespace, NamespaceSettings] = {}
        for name, (order, until) in list(self._orders.items()):
            stands = topology.namespaces.get(name, NOT_SAID)
            if self.core.now > until or stands.since != order.seen or stands.stands is Stands.DROPPING:
                probe("namespaces.void_order")
                del self._orders[name]
            elif name in topology.namespaces or len(topology.namespaces) + len(changes) < NAMESPACES_MAX:
                dropped = Stands.DROPPING if order.drop else Stands.THERE
                changes[name] = NamespaceSettings(ttl_ms=order.ttl_ms, stands=dropped)
        for name, stands in topology.namespaces.items():
            if stands.stands is Stands.DROPPING and self._is_gone(topology, name):
                changes[name] = NamespaceSettings(stands=Stands.DROPPED)
        return changes

    def heard(self, node: NodeId, beat: Heartbeat) -> None:
        """What a member says that it leads nothing of any more, under the map that is here."""
        if beat.dropped:
            self._gone[node] = beat.version, beat.dropped
        else:
            self._gone.pop(node, None)

    def _is_gone(self, topology: Topology, name: Namespace) -> bool:
        """Whether every primary said so. What is LOST may come back with rows in it."""
        leaders = self._leaders_of(topology)
        if leaders is None:
            return False
        for node in leaders:
            here = (topology.version, self.gone_here()) if node == self.core.node else (NO_VERSION, [])
            version, names = self._gone.get(node, here)
            if version != topology.version or name not in names:
                return False
        return True

    def _leaders_of(self, topology: Topology) -> dict[NodeId, None] | None:
        if self._leaders[0] is not topology:
            lost = any(p.lost for p in topology.placements)
            self._leaders = topology, None if lost else dict.fromkeys(p.owners[0] for p in topology.placements)
        return self._leaders[1]
