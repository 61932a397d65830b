"""Coming back from disk: the last checkpoint, folded with the log since. There is no second path.

Used by the server, by the embedded node, by the simulator over a simulated disk, and by every offline tool.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from engine.state.replica import Replica
from engine.state.store import LayeredStore
from wal.probe import probe
from wal.records import Record, Trimmed


class Replayed(Protocol):
    """One block of the log, as `wal.Log.replay` and `wal.read` give it."""

    @property
    def records(self) -> list[Record]:
        """Its records, in order."""
        ...


class Replays(Protocol):
    """A log that can be read from an LSN on."""

    @property
    def begins(self) -> int:
        """Its first LSN."""
        ...

    def replay(self, from_lsn: int) -> Iterable[Replayed]:
        """The blocks from there to the end."""
        ...


def recover(store: LayeredStore, log: Replays) -> Replica:
    """What a node has: its store's checkpoint and all that its log says since. Raises ValueError, and the log's errors.

    Blocks are never split by a checkpoint: it is taken between turns, and a turn is one block.
    """
    loaded = store.base.loading()
    replica = Replica(store)
    for record in replica.load(loaded):
        replica.apply(record)
    doubtful = log.begins > replica.trimmed  # unless a record that follows says where it begins
    applied = {n: f.counter.highest_applied for n, f in replica.fragments.items()} if doubtful else {}
    for block in log.replay(loaded.lsn + 1):
        for record in block.records:
            replica.apply(record)
    if log.begins > replica.trimmed:
        # The log is cut off where no record says so: the end that had it is lost, or a loss was accepted. What was
        # applied by the checkpoint may be in what went; what was applied since is in what was just read.
        probe("recover.history_in_doubt")
        dropped = [(*name, counter) for name, counter in applied.items() if name in replica.fragments]
        replica.apply(Trimmed(log.begins, dropped))
    return replica
