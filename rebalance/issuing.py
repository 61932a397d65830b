"""What is prepared in a partition is issued again before its epoch begins, where it is large.

An epoch begins with one batch, which each copy takes as a whole or not at all: a copy that has begun it, and lacks what
was prepared, would have forgotten a vote. Of much that batch would be too large for a frame and for a block of the log, and
of very many it would be more than a turn of a copy: so it is issued again before it, piece by piece. Until the epoch begins
nothing rests on that: what is prepared is the same vote under whichever epoch, and another primary issues again what it
finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from msgspec import structs

from rebalance.deadlines import key_of, said, saying
from rebalance.partition import PREPARED_MAX, LocalPartition, PartitionState, bytes_prepared
from rebalance.ports import BYTES_OF_WORK, Node, Operation, Shipping, batch_bytes
from wal import records as r
from wal.ids import EXPIRIES, Namespace, TxId
from wal.probe import probe

ISSUED_WORK = 2
"""For each that is issued so."""


@dataclass(slots=True)
class Again:
    """What an epoch begins with beside what is prepared: these writes, issued again or anew.

    `moved`: by namespace, that what is issued again has moved up, because something comes below (`rebalance.undone`): above
    which counter, and by how many.
    """

    writes: list[r.Write]
    moved: dict[Namespace, tuple[int, int]] = field(default_factory=dict)

    def said(self, row: bytes, value: bytes | None) -> bytes | None:
        """What a row of `~ttl` is to say, when entries have moved."""
        if value is None or not self.moved:
            return value
        when, counter = said(value)
        above, by = self.moved.get(key_of(row)[0], (0, 0))
        return saying(when, counter + by) if counter > above else value


def write_in(epoch: int, write: r.Write, again: Again | None = None) -> r.Write:
    """The same counters, entries and transaction, issued again in `epoch`. Where it moves with all that is issued `again`,
    or says another thing then, it is another update."""
    values, by = write.values, 0
    if again is not None and again.moved:
        _, by = again.moved.get(write.namespace, (0, 0))
        if write.namespace == EXPIRIES:
            values = list(map(again.said, write.keys, values))
    if by or values != write.values:
        return structs.replace(write, epoch=epoch, start=write.start + by, values=values, origin=0)
    return structs.replace(write, epoch=epoch, origin=write.issued)


def prepare_in(epoch: int, prepare: r.Prepare, again: Again | None = None) -> r.Prepare:
    """The same vote, issued again in `epoch`."""
    writes = [write_in(epoch, write, again) for write in prepare.writes]
    return structs.replace(prepare, epoch=epoch, writes=writes, origin=prepare.issued)


def issued_first(core: Node, state: PartitionState) -> bool:
    """Whether what is prepared is too much for the batch that begins an epoch."""
    return state.prepared_bytes > batch_bytes(core.settings)


def issue_prepared(
    core: Node,
    replication: Shipping,
    local: LocalPartition,
    again: Again,
    *,
    wanted: Callable[[], bool],
    then: Callable[[], None],
) -> None:
    """`then`, when all in-sync copies have what is prepared under the new epoch; at once, if that can begin with it.

    What moves up (`rebalance.undone`) begins with it however many there are.
    """
    state = core.replica.partition(local.number)
    if again.moved or not (len(state.prepared) > PREPARED_MAX or issued_first(core, state)):
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
            issued = prepare_in(local.epoch, prepare)
            core.log(issued)
            replication.ship(Operation(local, [issued], counted=partial(counted, issued.tx)), local)
            yield ISSUED_WORK + bytes_prepared(issued) // BYTES_OF_WORK

    core.in_pieces(pieces())
