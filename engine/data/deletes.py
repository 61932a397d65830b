"""What a primary deletes by itself, because its time has come or its namespace goes: no client asks for it.

Such a delete is numbered, logged, replicated and kept for who reads the past like every other, and nobody touches its keys
until it counts. Why there is one is for `engine.data.expiry` and `engine.data.dropping` to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from engine.data.cuts import Cuts
from engine.data.holdings import Key
from engine.data.locks import LockTable
from engine.data.replication import Replication
from engine.turn.core import Core
from rebalance.partition import LocalPartition
from rebalance.ports import Operation
from wal import records as r
from wal.ids import Namespace, TxId

NOBODY: TxId = b""
"""In whose name: of no transaction."""


def written(
    core: Core,
    namespace: Namespace,
    number: int,
    epoch: int,
    *,
    keys: list[bytes],
    values: list[bytes | None],
    tx: TxId = NOBODY,
) -> r.Write:
    """Keys, each once, and their values (None: deleted) as one range of counters that this primary hands out now."""
    counter = core.replica.ensure_fragment((namespace, number)).counter
    start = counter.reserve(len(keys))
    return r.Write(namespace, number, epoch, start, keys, values=values, stable=counter.lwm, tx=tx)


class Deletes:
    """How a primary makes them."""

    def __init__(self, core: Core, replication: Replication, locks: LockTable, cuts: Cuts) -> None:
        self.core = core
        self.replication = replication
        self.locks = locks
        self.cuts = cuts

    def ship(
        self,
        local: LocalPartition,
        entries: Mapping[Namespace, Sequence[bytes]],
        keys: Sequence[Key],
        *,
        over: Callable[[bool], None],
    ) -> None:
        """Delete these entries of a partition by one record; until that is over, nobody else has the `keys`.

        `over` is told whether it counts; if not, another primary has it.
        """
        core, number = self.core, local.number
        once = {namespace: dict.fromkeys(gone) for namespace, gone in entries.items()}
        writes = [
            written(core, namespace, number, local.epoch, keys=list(gone), values=list(gone.values()))
            for namespace, gone in once.items()
        ]
        update = r.Update(writes)
        core.log_unapplied(update)
        for key in keys:
            self.locks.pend(key)
        counted, abandoned = partial(self._counted, writes, keys, over), partial(self._abandoned, keys, over)
        self.replication.ship(Operation(local, [update], counted=counted, abandoned=abandoned), local)

    def _counted(self, writes: Sequence[r.Write], keys: Sequence[Key], over: Callable[[bool], None]) -> None:
        core = self.core
        for write in writes:
            self.cuts.keep(write, core.era)
            core.replica.apply_write(write)
        self._unpend(keys)
        over(True)

    def _abandoned(self, keys: Sequence[Key], over: Callable[[bool], None]) -> None:
        self._unpend(keys)
        over(False)

    def _unpend(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self.locks.unpend(key)
