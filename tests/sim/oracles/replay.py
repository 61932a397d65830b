"""Invariant 7: the store is never ahead of the log, and every way back from disk leads to the same state.

At each start the node is recovered a second time, from the same checkpoint and from an older one that was kept, and all
that recovery made must be equal.
"""

from __future__ import annotations

from typing import Any

from engine.state.recover import recover
from engine.state.replica import Replica
from engine.state.store import BaseStore, CheckpointImage, LayeredStore
from engine.state.store_memory import MemoryStore
from tests.sim.machine import Machine
from tests.sim.oracles.equality import ROWS_AT_ONCE
from tests.sim.oracles.oracle import Oracle
from tests.sim.violation import About, Violation
from wal.ids import NodeId, fragment_name


class Replay(Oracle):
    """Recovery says the same, however often and from wherever it begins."""

    def __init__(self) -> None:
        self._older: dict[NodeId, tuple[str, int, MemoryStore]] = {}

    def checkpoint(self, machine: Machine, image: CheckpointImage) -> None:
        """The log must hold it already; and what is there before is kept, as long as the log reaches back to it."""
        assert machine.log is not None
        assert machine.node is not None
        if image.lsn > machine.log.durable_lsn:
            raise Violation(
                "store-ahead",
                f"{machine.name} writes a checkpoint up to lsn {image.lsn}; durable is {machine.log.durable_lsn}",
                About(nodes=(machine.name,)),
            )
        kept = self._older.get(machine.name)
        base = machine.node.core.replica.store.base
        if isinstance(base, MemoryStore) and (kept is None or not _reaches(machine, kept)):
            self._older[machine.name] = (machine.allocation, base.load().lsn, base.copy())

    def destroyed(self, machine: Machine, how: str) -> None:
        """A disk with another history."""
        self._older.pop(machine.name, None)

    def started(self, machine: Machine) -> None:
        """Recover again, and once more from further back."""
        assert machine.node is not None
        replica = machine.node.core.replica
        first = standing_of(replica)
        self._compare(machine, first, replica.store.base, "again")
        kept = self._older.get(machine.name)
        if kept is not None and _reaches(machine, kept):
            self._compare(machine, first, kept[2], f"from the checkpoint at lsn {kept[1]}")

    def _compare(self, machine: Machine, was: dict[str, Any], base: BaseStore, how: str) -> None:
        assert machine.log is not None
        with machine.disk.unwatched():
            second = recover(LayeredStore(base), machine.log)
        is_now = standing_of(second)
        for what in (*was, *(w for w in is_now if w not in was)):
            if was.get(what) != is_now.get(what) and (machine.name, what) not in machine.world.rotten.ever:
                raise Violation(
                    "replay",
                    f"{machine.name} recovered {how} has {what} {is_now.get(what)}, at first it had {was.get(what)}",
                    About(nodes=(machine.name,)),
                )


def _reaches(machine: Machine, kept: tuple[str, int, MemoryStore]) -> bool:
    """Whether the log still holds what followed a checkpoint."""
    assert machine.log is not None
    return kept[0] == machine.allocation and machine.log.segments()[0].first_lsn <= kept[1] + 1


def standing_of(replica: Replica) -> dict[str, Any]:
    """Everything that recovery makes, by name; tombstones are left out, for a checkpoint may forget them."""
    state: dict[str, Any] = {
        "node": (replica.incarnation, replica.promised, replica.accepted, replica.committed),
    }
    for name, copy in replica.fragments.items():
        rows = replica.store.scan(name, b"", ROWS_AT_ONCE)
        if not (copy.counter.hwm or copy.epochs or copy.loading or rows):
            continue
        state[fragment_name(name)] = (
            copy.counter.lwm,
            copy.counter.hwm if not copy.loading else 0,  # it counts for nothing
            copy.counter.ranges,
            copy.digest,
            copy.epochs,
            copy.loading,
            copy.history_from,
            sorted(copy.suspects),
            [(key, entry) for key, entry in rows if entry.value is not None],
        )
    for number, partition in replica.partitions.items():
        if partition.epoch or partition.prepared or partition.results.items():
            results = (sorted(partition.results.items()), partition.results.floor)
            state[f"partition {number}"] = (partition.epoch, sorted(partition.prepared.items()), results)
    return state
