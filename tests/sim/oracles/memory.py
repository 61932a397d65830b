"""What a copy keeps in memory does not grow with its history, nor with what is written while nothing is done about its gap.

A fragment's state may hold its tail, a bounded number of digests, one entry for each epoch, and its tombstones. At rest
nothing else is there. Everything in it that has a length is counted, whatever it is called: a table that is added
one day is counted, too.
"""

from __future__ import annotations

from collections.abc import Sized

from engine.turn.core import Core
from rebalance.chained import DIGESTS_KEPT
from rebalance.fragment import FragmentState
from rebalance.moves import waits_by_order
from rebalance.partition import Role
from tests.sim.oracles.ledger import Ledger
from tests.sim.oracles.oracle import Oracle
from tests.sim.violation import About, Violation
from tests.sim.world import World
from wal.ids import Fragment, NodeId

SPARE = 16
"""The last writes, which nobody has said to be everywhere yet."""
COUNTED_APART = ("name", "tombstones")


class Memory(Oracle):
    """At rest, every copy of every fragment on every node."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._rests: dict[
            tuple[NodeId, int, int], dict[Fragment, int]
        ] = {}  # node, life, rest -> beyond which gap how much

    def look(self, world: World) -> None:
        """Where a node asks for nothing, because it was set aside, nothing more comes to lie beyond a gap."""
        rests, self._rests = self._rests, {}
        for machine in world.running:
            if (node := machine.node) is None or not (until := node.demander.rest.until):
                continue
            rest = (machine.name, machine.boot, until)
            before = rests.get(rest, {})
            found = self._rests[rest] = beyond_gaps(node.core)
            for name, count in found.items():
                if count > before.get(name, count):
                    raise Violation(
                        "memory",
                        f"{machine.name} rests, and keeps {count} updates of {name[0]}/{name[1]} beyond a gap, "
                        f"and not {before[name]} as before",
                        About(fragments=(name,)),
                    )

    def finish(self, world: World) -> None:
        """Count."""
        newest = self._ledger.newest
        assert newest is not None
        for machine in world.running:
            assert machine.node is not None
            replica = machine.node.core.replica
            for name, copy in replica.fragments.items():
                found = kept(copy)
                if copy.loading and waits_by_order(newest, name[1]):
                    for held in ("suspects", "beyond"):  # a transfer broke off when the operator paused it, and what was
                        found.pop(held)  # written since is kept for when he resumes, and it goes on
                allowed = DIGESTS_KEPT + SPARE + newest.placements[name[1]].epoch
                if sum(found.values()) > allowed:
                    raise Violation(
                        "memory",
                        f"{machine.name} keeps {sum(found.values())} things of {copy}, and not {allowed} at most: {found}",
                        About(fragments=(name,)),
                    )


def beyond_gaps(core: Core) -> dict[Fragment, int]:
    """How many updates lie beyond the gap of each MOVING copy that lacks what no transaction in doubt there will bring."""
    found: dict[Fragment, int] = {}
    for local in core.local:
        if local.role is Role.MOVING:
            state = core.replica.partition(local.number)
            held = {(w.namespace, w.start) for prepare in state.prepared.values() for w in prepare.writes}
            for copy in state.fragments.values():
                if copy.loading or (copy.counter.ranges and (copy.name[0], copy.counter.lwm) not in held):
                    found[copy.name] = len(copy.beyond)
    return found


def kept(copy: FragmentState) -> dict[str, int]:
    """How many things each part of a copy's state holds."""
    found = {slot: getattr(copy, slot) for slot in type(copy).__slots__ if slot not in COUNTED_APART}
    return {slot: len(value) for slot, value in found.items() if isinstance(value, Sized) and not isinstance(value, str)}
