"""What a copy keeps in memory does not grow with its history.

A fragment's state may hold its tail, a bounded number of digests, one entry for each epoch, and its tombstones. At rest
nothing else is there. Everything in it that has a length is counted, whatever it is called: a table that is added
one day is counted, too.
"""

from __future__ import annotations

from collections.abc import Sized

from rebalance.fragment import DIGESTS_KEPT, FragmentState
from rebalance.moves import waits_by_order
from tests.sim.oracles.ledger import Ledger
from tests.sim.oracles.oracle import Oracle
from tests.sim.violation import About, Violation
from tests.sim.world import World

SPARE = 16
"""The last writes, which nobody has said to be everywhere yet."""
COUNTED_APART = ("name", "tombstones")


class Memory(Oracle):
    """At rest, every copy of every fragment on every node."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

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


def kept(copy: FragmentState) -> dict[str, int]:
    """How many things each part of a copy's state holds."""
    found = {slot: getattr(copy, slot) for slot in type(copy).__slots__ if slot not in COUNTED_APART}
    return {slot: len(value) for slot, value in found.items() if isinstance(value, Sized) and not isinstance(value, str)}
