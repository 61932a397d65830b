"""What is written is in a partition of its namespace's group: only that has as many copies as the namespace asks for."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.machine import Machine
from tests.sim.oracles.oracle import Oracle
from tests.sim.violation import About, Violation
from wal.ids import NAME, fragment_name
from wal.records import Prepare, Record, Update


class Places(Oracle):
    """What primaries decide to write, by the maps under which they do.

    A delete may be of an older life of its namespace, and so may what is issued again: it says that it had an origin.
    """

    def decided(self, machine: Machine, records: Sequence[Record]) -> None:
        """A node decided something."""
        assert machine.node is not None
        core = machine.node.core
        top = core.topology
        if top is None or not top.groups:
            return
        for record in records:
            for write in record.writes if isinstance(record, Update | Prepare) else ():
                if not core.local[write.partition].mine or write.origin or not NAME.fullmatch(write.namespace):
                    continue
                if any(value is not None for value in write.values) and write.partition not in top.partitions_of(
                    write.namespace
                ):
                    raise Violation(
                        "places",
                        f"{machine.name} writes to {fragment_name(write.fragment)}, which is of "
                        f"{top.group_of(write.partition).told}, at {top.version}",
                        About(fragments=(write.fragment,)),
                    )
