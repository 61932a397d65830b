"""What the operator ordered, until an exchange has carried it out.

An order is given to any node and passed on to the coordinator; who took it keeps it, for the case that the coordinator
dies. It names what it is about: the baseline that it replaces, the placements that are LOST. When these have changed it is
void, so that an order that is delayed, repeated or remembered is never executed late; and none stands for longer than a
person waits. Of two operators who saw the same, one is carried out, and the other is told that it stands otherwise. One
that those who are here cannot carry out stops nothing: it waits for others.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from typing import assert_never

import msgspec

from engine.cluster.detector import Detector
from engine.cluster.namespaces import ORDER_MS_MAX, LookedThrough, NamespaceOrders
from engine.messages import ResetLost, SetBaseline, SetMigrations, SetNamespace
from engine.messages.cluster import Order
from engine.turn.core import Core
from rebalance.affinity import Affinity
from rebalance.baselines import can_decide
from rebalance.ideal import finding_ideal, ideal_of, most_copies
from rebalance.migrations import Migrations
from rebalance.ports import MS
from rebalance.table import Topology
from wal.ids import NodeId
from wal.probe import probe

COUNTED_AT_ONCE = 1_024
"""Partitions that are counted in one piece,"""
COUNTED_OF_WORK = 16
"""so many of which are as much work as one thing that is decided; and so many of which it is known where they belong:"""
PLACED_OF_WORK = 64


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What another baseline costs."""

    baseline: tuple[NodeId, ...]
    copies: int  # of each partition, when all is done; in the group that has the most
    copies_wanted: int
    copies_before: int
    failures_survived: int  # how many voters may be lost, and the rest decides
    made_anew: int  # copies that have to be made
    given_on: str  # the version that brought the baseline of which this was asked
    only_there: list[int]  # partitions, every in-sync copy of which is on nodes that go and are not here

    def told(self) -> str:
        """It as a sentence."""
        voters = len(self.baseline)
        said = (
            f"{voters} {'node holds' if voters == 1 else 'nodes hold'} data ({', '.join(self.baseline)}): {self.copies} of "
            f"{self.copies_wanted} copies of each partition, {self.made_anew} to be made; "
            f"{self.failures_survived} of the nodes may fail and the rest goes on"
        )
        if self.only_there:
            said += f"; {len(self.only_there)} partitions have no in-sync copy but on nodes that go and are not here"
        return said

    @property
    def too_much(self) -> bool:
        """Whether it takes an operator who means it."""
        fewer = self.copies < self.copies_wanted and self.copies < self.copies_before
        return fewer or bool(self.only_there)


def costing(topology: Topology, baseline: tuple[NodeId, ...], affinity: Affinity) -> Generator[int, None, Cost]:
    """What it costs to have these nodes hold the data. In pieces: yields how much work the last one was."""
    wanted, here, placements = most_copies(topology.all_groups), [m.node for m in topology.members], topology.placements
    ideal = ideal_of(topology, affinity, baseline)
    yield len(ideal) // PLACED_OF_WORK
    made_anew, only_there = 0, list[int]()
    for first in range(0, len(placements), COUNTED_AT_ONCE):
        some = placements[first : first + COUNTED_AT_ONCE]
        for number, (placement, nodes) in enumerate(zip(some, ideal[first : first + len(some)], strict=True), first):
            in_sync = placement.in_sync
            made_anew += sum(n not in in_sync for n in nodes)
            if all(n not in baseline and n not in here for n in in_sync):
                only_there.append(number)
        yield len(some) // COUNTED_OF_WORK
    return Cost(
        baseline=baseline,
        copies=min(wanted, len(baseline)),
        copies_wanted=wanted,
        copies_before=min(wanted, len(topology.baseline)),
        failures_survived=(len(baseline) - 1) // 2,
        made_anew=made_anew,
        given_on=str(topology.baselined),
        only_there=only_there,
    )


class Orders:
    """The orders that stand on one node."""

    def __init__(self, core: Core, detector: Detector, *, looked_through: LookedThrough) -> None:
        self.core = core
        self.detector = detector
        self._baseline: tuple[SetBaseline, int] | None = None  # and until when it stands; so are the others
        self._reset: tuple[ResetLost, int] | None = None
        self._migrations: tuple[SetMigrations, int] | None = None
        self._waits_for: list[NodeId] = []  # without whom the baseline that is ordered could decide nothing
        self.namespaces = NamespaceOrders(core, pass_on=self._pass_on, looked_through=looked_through)

    # Given here.

    def set_baseline(self, nodes: tuple[NodeId, ...], *, sure: bool) -> Generator[int, None, Cost | str]:
        """Ask for another baseline: what it costs; or why not. In pieces: yields how much work the last one was."""
        core = self.core
        problem = _no_baseline(nodes, core.topology)
        if not problem and (before := core.topology) is not None:
            yield from finding_ideal(core.affinity, nodes, before.domains, before.partitions, before.all_groups)
            problem = _no_baseline(nodes, core.topology)  # another map may be there by now
        topology = core.topology
        if problem or topology is None:
            return problem
        cost = yield from costing(topology, nodes, core.affinity)
        if problem := _no_baseline(nodes, core.topology):
            return problem
        if cost.too_much and not sure:
            return f"{cost.told()}; say --yes if that is meant"
        self._pass_on(SetBaseline(list(nodes), topology.baselined))
        return cost

    def remove(self, nodes: tuple[NodeId, ...], *, sure: bool) -> Generator[int, None, Cost | str]:
        """Ask for a baseline without these nodes, in the same way."""
        topology = self.core.topology
        baseline = topology.baseline if topology is not None else ()
        unknown = [n for n in nodes if n not in baseline]
        if topology is not None and unknown:
            return f"not in the baseline: {', '.join(unknown)}; it is {', '.join(baseline)}"
        return (yield from self.set_baseline(tuple(n for n in baseline if n not in nodes), sure=sure))

    def reset_lost(self, *, sure: bool) -> list[int] | str:
        """Ask for the lost partitions to begin again with what there is: which they are; or why not."""
        topology = self.core.topology
        if topology is None:
            return "the cluster is not formed yet"
        lost = [number for number, p in enumerate(topology.placements) if p.lost]
        held = dict.fromkeys(name for number in lost for name in topology.placements[number].in_sync)
        if lost and not sure:
            return (
                f"{len(lost)} partitions are LOST; the disks that held all of them are {', '.join(held)}. Whatever only "
                "they have would be gone for good: start these nodes again if you can, or say --yes"
            )
        if lost:
            self._pass_on(ResetLost([(number, topology.placements[number].version) for number in lost]))
        return lost

    def set_migrations(self, order: SetMigrations) -> str:
        """Ask for migrations to be paused, resumed or limited; why it cannot be, or nothing."""
        topology = self.core.topology
        if topology is None:
            return "the cluster is not formed yet"
        since = topology.migrations.since
        if since != order.seen:
            return (
                f"what holds for migrations was changed meanwhile: this was asked of what version {order.seen} said, and "
                f"{since} says something else; look at `foreshore cluster status` again"
            )
        self._pass_on(order)
        return ""

    def _pass_on(self, order: Order) -> None:
        self.handle(order)
        leader = self.detector.coordinator()
        if leader is not None and leader != self.core.node:
            self.core.send(leader, order)

    # Passed on.

    def handle(self, order: Order) -> None:
        """An order came, to be carried out by the next exchange that this node leads."""
        if isinstance(order, SetNamespace):
            self.namespaces.handle(order)
            return
        if isinstance(order, SetMigrations):
            self._hear_of_migrations(order)
            return
        topology, until = self.core.topology, self.core.now + ORDER_MS_MAX * MS
        match order:
            case SetBaseline(_, baselined):
                if topology is None or baselined != topology.baselined:
                    brought = topology.baselined if topology is not None else "nothing"
                    self.core.note(f"an order about the baseline of {baselined} is void: {brought} brought another")
                else:
                    self._baseline, self._waits_for = (order, until), []
            case ResetLost():
                self._reset = order, until
            case _:
                assert_never(order)

    def _hear_of_migrations(self, order: SetMigrations) -> None:
        """An order that stands is not replaced by another that was given on the same."""
        standing, now = self._migrations, self.core.now
        if standing is None or now > standing[1] or standing[0].seen != order.seen:
            self._migrations = order, now + ORDER_MS_MAX * MS

    def of_migrations(self, topology: Topology) -> Migrations | None:
        """What the next map is to say of migrations, if that is to change."""
        if self._migrations is None:
            return None
        order, until = self._migrations
        if self.core.now > until or topology.migrations.since != order.seen:
            probe("migrations.void_order")
            self._migrations = None
            return None
        return Migrations(paused=order.paused, bytes_per_second=order.bytes_per_second)

    def standing(self, topology: Topology, here: Collection[NodeId]) -> tuple[tuple[NodeId, ...] | None, list[int]]:
        """Who should hold the data, if that is to change; and the lost partitions that are to begin again.

        `here`: who will be in the next map. A baseline by which these could decide nothing waits for the others.
        """
        return self._baseline_that_stands(topology, here), self._lost_to_begin_again(topology)

    def _baseline_that_stands(self, topology: Topology, here: Collection[NodeId]) -> tuple[NodeId, ...] | None:
        if self._baseline is None:
            return None
        (order, until), now = self._baseline, self.core.now
        if now > until or order.baselined != topology.baselined or _unknown(order.nodes, topology):
            self._baseline = None
            return None
        if can_decide(order.nodes, here):
            return tuple(order.nodes)
        away = [n for n in order.nodes if n not in here]
        if away != self._waits_for:
            probe("orders.a_baseline_waits")
            self._waits_for = away
            self.core.note(
                f"the baseline {', '.join(order.nodes)} waits for {', '.join(away)}: without a majority of it nothing can "
                "be decided"
            )
        return None

    def _lost_to_begin_again(self, topology: Topology) -> list[int]:
        if self._reset is None:
            return []
        (order, until), places = self._reset, topology.placements
        lost = [n for n, version in order.partitions if n < len(places) and places[n].lost and places[n].version == version]
        if self.core.now > until or not lost:
            self._reset = None
            return []
        return lost


def _no_baseline(nodes: tuple[NodeId, ...], topology: Topology | None) -> str:
    """Why these nodes cannot be the ones that hold the data, or nothing."""
    if topology is None:
        return "the cluster is not formed yet"
    unknown = _unknown(nodes, topology)
    if unknown:
        return f"not a member: {', '.join(unknown)}; members: {', '.join(m.node for m in topology.members)}"
    if not nodes:
        return "a baseline needs at least one node"
    away = [n for n in nodes if topology.member(n) is None]
    if not can_decide(nodes, [m.node for m in topology.members]):
        return f"{', '.join(away)} are not here: without a majority the baseline {', '.join(nodes)} could decide nothing"
    return ""


def _unknown(nodes: Sequence[NodeId], topology: Topology) -> list[NodeId]:
    """Those of whom the map knows no disk: a vote of theirs would be nobody's."""
    return [n for n in nodes if topology.member(n) is None and n not in topology.baseline]
