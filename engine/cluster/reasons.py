"""For which reasons the coordinator begins an exchange, and whether it waits for more of them.

What a member lacks, asks for or is held up by is due now; what would only be better is due soon, and one map is better than
several: other reasons are waited for (`exchange_delay_ms`) where others may come. A node that was expected back, and is
the last one, comes alone; so does what an operator orders, and the last of the copies that come to count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from engine.cluster.attempt import Intent
from engine.cluster.leaving import Leaving
from engine.cluster.orders import Orders
from engine.cluster.pace import Pace
from engine.cluster.steps import Steps
from engine.messages import Heartbeat
from engine.turn.core import Core
from rebalance.baselines import may_be
from rebalance.going import going, led_by, may_go
from rebalance.handing import all_may_leave
from rebalance.migrations import Paused
from rebalance.moves import Better, finding_better
from rebalance.namespaces import places_anew
from rebalance.table import Candidate, Topology
from wal.ids import NodeId, Version

READY_OF_WORK = 4
"""So many primaries that are looked at are as much work as one thing that is decided."""


def is_member(topology: Topology, candidate: Candidate) -> bool:
    """Whether the map lists this very life of a node, on this very disk."""
    member = topology.member(candidate.node)
    life = candidate.allocation, candidate.incarnation
    return member is not None and (member.allocation, member.incarnation) == life


def _all_are_back(topology: Topology, joins: Collection[Candidate], names: Collection[NodeId]) -> bool:
    """Whether this is the last one that should be here. Another may come next, and be in the same map; so may more if this
    one was not expected either."""
    expected = all(c.node in topology.voters for c in joins)
    return bool(joins) and expected and all(n in names for n in topology.voters)


class Reasons:
    """What would have to change, as the coordinator sees it."""

    def __init__(self, core: Core, *, steps: Steps, leaving: Leaving, orders: Orders, pace: Pace) -> None:
        self._core = core
        self._steps = steps
        self._leaving = leaving
        self._orders = orders
        self._pace = pace
        self.frozen: dict[NodeId, None] = {}  # members that are held up by an exchange of this version
        self.emptied: dict[NodeId, Sequence[int]] = {}  # whose copies are not what the map says; where, if a step does
        self.serves: dict[NodeId, Version] = {}  # by which map each member said last that it serves all that it leads
        self.lets_go: dict[NodeId, int] = {}  # who knows of steps by which somebody goes, and in which life it said so
        self.fences: dict[NodeId, int] = {}  # the same of those of another baseline or places, or that take a copy out
        self.amends: dict[NodeId, int] = {}  # and of those that bring a group, or by which a primary leaves a wrong copy
        self._said: dict[NodeId, tuple[object, ...]] = {}  # what each member said last that may be a reason
        self._moves: tuple[Topology, list[NodeId], Better | None] | None = None  # of this map, with these
        self._ready: list[int] = []  # of these, the primaries that can move at once
        self._led: tuple[Topology, list[NodeId], list[int]] | None = None  # of this map, what these lead
        self._leaders: tuple[Topology, dict[NodeId, None]] | None = None  # of this map, who leads anything

    def are_new(self, sender: NodeId, beat: Heartbeat) -> bool:
        """Whether a member says something of itself that it did not say before, and that may be a reason."""
        said = (
            *(beat.version, beat.life, beat.silent, beat.frozen, beat.promoting, beat.emptied, beat.anew),
            *(beat.dropped, beat.written, beat.lets_go, beat.fences, beat.amends),
        )
        before, self._said[sender] = self._said.get(sender), said
        return said != before

    @property
    def searches(self) -> bool:
        """Whether it looks through the partitions, some at a time, for what would be better elsewhere."""
        return self._moves is not None and self._moves[2] is None

    def switch(self) -> None:
        """Another map: what was said under the one before is said again if it is so."""
        self.frozen, self.emptied, self.serves = {}, {}, {}

    def intent(self, topology: Topology, alive: list[Candidate]) -> Intent:
        """What the next map should change, and for which reasons; for none, nothing is to be begun."""
        core, names = self._core, {c.node: c for c in alive}
        lost = [m.node for m in topology.members if m.node not in names]
        joins = [c for c in alive if not is_member(topology, c)]
        leaving, noted = self._leaving.granted(topology, alive), going(topology)
        present = [c.node for c in alive if c.node not in leaving and c.node not in noted]
        at_once = bool(leaving) and all(n in noted for n in leaving)  # they go before anything is looked for
        handover, extra, missing = ([], [], []) if at_once else self._wanted_moves(topology, present)
        handover = handover + self.led_by(topology, leaving) if leaving else handover
        lightly, all_fence = self._may_go(topology, leaving, noted), self.all_fence(topology)
        baseline, reset = self._orders.standing(topology, [n for n in names if n not in leaving])
        namespaces, groups = self._orders.namespaces.standing(topology)
        known, migrations = self.all_amend(topology) if groups else all_fence, self._orders.of_migrations(topology)
        doubted, stays = self._doubted(topology) if all_fence else {}, not places_anew(topology.namespaces, namespaces)
        slow = self._pace.to_set_aside(topology, names) if not (self.frozen or core.stopped) else {}
        due = {  # reason -> whether it holds, and whether everybody has to stop for it
            "lost " + ", ".join(lost): (bool(lost), True),
            "lost partitions begin again": (bool(reset), True),
            "too slow: " + ", ".join(slow): (bool(slow), True),
            "not whole: " + ", ".join(self.emptied): (bool(self.emptied), not doubted),
            "an exchange that did not end": (bool(self.frozen) or core.stopped, True),
            "the baseline changes": (baseline is not None, not (all_fence and may_be(topology, baseline or ()))),
            "joining " + ", ".join(c.node for c in joins): (bool(joins), False),
            "namespaces change: " + ", ".join(namespaces): (bool(namespaces), not (known or stays)),
            "the operator's word on migrations": (migrations is not None, False),
            "leaving " + ", ".join(leaving): (bool(leaving), not lightly),
        }
        now = {reason: stops for reason, (holds, stops) in due.items() if holds}
        soon = [reason for reason, holds in self._better(handover, extra, missing).items() if holds]
        ordered = baseline is not None or migrations is not None or bool(namespaces or reset)
        all_whole = self._steps.complete and not now
        return Intent(
            alive,
            handover=sorted(set(handover)),
            baseline=baseline,
            reset=reset,
            aside=self._pace.known(topology) | slow,
            mute=[n for n in slow if self._pace.is_mute(n, names)],
            namespaces=namespaces,
            groups=groups,
            migrations=migrations,
            surplus=extra,
            missing=missing,
            joins=joins,
            doubted=doubted,
            by_step=not any(now.values()),
            leaving=leaving,
            reason="; ".join([*now, *soon]),
            can_wait=not now,
            gathers=not (lost or ordered or all_whole or (leaving and lightly) or _all_are_back(topology, joins, names)),
        )

    def _may_go(self, topology: Topology, leaving: list[NodeId], noted: list[NodeId]) -> bool:
        """Whether these can go without stopping anybody, or are about to."""
        return all(n in noted for n in leaving) or (self.all_let_go(topology) and may_go(topology, leaving))

    def all_let_go(self, topology: Topology) -> bool:
        """Whether all members know of steps by which somebody goes, and of ballots that stand without an exchange."""
        return self._all_know(topology, self.lets_go)

    def all_fence(self, topology: Topology) -> bool:
        """Whether all members know of steps that bring another baseline, other places of keys, or take a copy out."""
        return self._all_know(topology, self.fences)

    def all_amend(self, topology: Topology) -> bool:
        """Whether all members know of steps that bring a group, or by which a primary leaves a copy that is wrong."""
        return self._all_know(topology, self.amends)

    def _all_know(self, topology: Topology, said: Mapping[NodeId, int]) -> bool:
        """Whether all members have said so, each in the life that the map lists."""
        return all(m.node == self._core.node or said.get(m.node) == m.incarnation for m in topology.members)

    def _doubted(self, topology: Topology) -> dict[int, list[NodeId]]:
        """The copies that steps are to take out, by partition; none, where that takes more than steps."""
        found: dict[int, list[NodeId]] = {}
        for node, numbers in self.emptied.items():
            if not numbers:
                return {}
            for number in numbers:
                placement = topology.placements[number] if number < len(topology.placements) else None
                if placement is None or placement.lost:
                    return {}
                if node in placement.in_sync:
                    found.setdefault(number, []).append(node)
        led = any(topology.placements[number].owners[0] in nodes for number, nodes in found.items())
        return found if not led or (self.all_amend(topology) and all_may_leave(topology, found)) else {}

    def all_serve(self, topology: Topology) -> bool:
        """Whether all who lead anything have said under this very map that they serve it."""
        if self._leaders is None or self._leaders[0] is not topology:
            self._leaders = topology, dict.fromkeys(p.owners[0] for p in topology.placements if not p.lost)
        return all(self.serves.get(node) == topology.version for node in self._leaders[1])

    def led_by(self, topology: Topology, nodes: Sequence[NodeId]) -> list[int]:
        """The partitions that these lead; looked for once in each map."""
        if self._led is None or self._led[0] is not topology or self._led[1] != list(nodes):
            self._led = topology, list(nodes), led_by(topology, nodes)
        return list(self._led[2])

    def _better(self, handover: list[int], extra: list[int], missing: list[int]) -> dict[str, bool]:
        """The reasons that can wait."""
        return {
            f"{len(self._steps.caught_up)} copies caught up": bool(self._steps.caught_up),
            f"{len(handover)} primaries to move": bool(handover),
            "surplus copies": bool(extra),
            f"{len(missing)} copies to make": bool(missing),
        }

    def _wanted_moves(self, topology: Topology, present: list[NodeId]) -> tuple[list[int], list[int], list[int]]:
        """Primaries to move, copies to drop, and to make, as soon as they are found; once for as long as nothing changes.

        While migrations are paused no primary moves that is well where it is. A copy may be that of who was primary before
        the last step, and is asked then by who is now: no copy goes before all who lead say that they serve.
        """
        if not self._core.affinity_known:
            return [], [], []
        if self._moves is None or self._moves[0] is not topology or self._moves[1] != present:
            self._moves = topology, present, None
            self._core.in_pieces(self._find_moves(topology, present))
        moves = self._moves[2]
        if moves is None:
            return [], [], []
        vouched: dict[int, list[NodeId]] = {}
        for partition, node in self._steps.caught_up if moves.leaders else ():
            vouched.setdefault(partition, []).append(node)
        handover = list(dict.fromkeys([*self._ready, *moves.ready_with(vouched)]))
        handover = [] if topology.migrations.paused is not Paused.NOTHING else handover
        leaders = dict.fromkeys(topology.placements[number].owners[0] for number in moves.surplus)
        if not all(self.serves.get(node) == topology.version for node in leaders):
            moves = moves.without_surplus()
        return handover, moves.surplus, moves.missing

    def _find_moves(self, topology: Topology, present: list[NodeId]) -> Iterator[int]:
        """Look through the partitions, some at a time, for as long as nothing changes."""
        pieces = finding_better(topology, present, self._core.affinity)
        asked = self._moves
        moves = yield from pieces
        if self._moves is asked:
            self._moves, self._ready = (topology, present, moves), moves.ready(topology)
            yield len(moves.leaders) // READY_OF_WORK
