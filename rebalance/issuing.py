"""What is prepared in a partition is issued again before its epoch begins, where it is large.

An epoch begins with one batch, which each copy takes as a whole or not at all: a copy that has begun it, and lacks what
was prepared, would have forgotten a vote. Of much that batch would be too large for a frame and for a block of the log, so
it is issued again before it, piece by piece. Until the epoch begins nothing rests on that: what is prepared is the same
vote under whichever epoch, and another primary issues again what it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from msgspec import structs

from rebalance.partition import LocalPartition, bytes_prepared
from rebalance.ports import BYTES_OF_WORK, Node, Operation, Shipping
from wal import records as r
from wal.ids import TxId
from wal.probe import probe


def write_in(epoch: int, write: r.Write) -> r.Write:
    """The same counters, entries and transaction, issued again in `epoch`."""
    return structs.replace(write, epoch=epoch, origin=write.issued)


def prepare_in(epoch: int, prepare: r.Prepare) -> r.Prepare:
    """The same vote, issued again in `epoch`."""
    return structs.replace(prepare, epoch=epoch, writes=[write_in(epoch, w) for w in prepare.writes], origin=prepare.issued)


def issue_prepared(
    core: Node, replication: Shipping, local: LocalPartition, *, wanted: Callable[[], bool], then: Callable[[], None]
) -> None:
    """`then`, when all in-sync copies have what is prepared under the new epoch; at once, if that can begin with it."""
    state = core.replica.partition(local.number)
    if state.prepared_bytes <= core.settings.supply_batch_bytes:
        then()
        return
    probe("promotion.issues_prepared_first")
    left = dict.fromkeys(state.prepared)

    def counted(tx: TxId) -> None:
        del left[tx]
        if not left:
            then()

    def pieces() -> Iterator[int]:
        for prepare in list(state.prepared.values()):
            if not wanted():
                return
            again = prepare_in(local.epoch, prepare)
            core.log(again)
            replication.ship(Operation(local, [again], counted=partial(counted, again.tx)), local)
            yield 1 + bytes_prepared(again) // BYTES_OF_WORK

    core.in_pieces(pieces())
