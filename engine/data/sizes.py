"""How large what a primary decided is, and how much of it goes into one batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rebalance.ports import Shipped
from wal import records as r

BATCH_BYTES_MAX = 16 << 20
"""Of what is sent again after a change of topology; a turn's batch is as large as the turn."""


def pieces_of(operations: list[Shipped]) -> Iterator[tuple[list[Shipped], int]]:
    """Operations of many turns, in batches that are as large as one turn's may be; each with its size."""
    piece, total = list[Shipped](), 0
    for operation in operations:
        size = size_of(operation.records)
        if piece and total + size > BATCH_BYTES_MAX:
            yield piece, total
            piece, total = [], 0
        piece.append(operation)
        total += size
    if piece:
        yield piece, total


def size_of(records: Sequence[r.Record]) -> int:
    """About how many bytes records have."""
    total = 0
    for record in records:
        match record:
            case r.Update(writes) | r.History(writes):
                total += sum(_write_size(w) for w in writes)
            case r.Prepare(writes=writes):
                total += sum(_write_size(w) for w in writes)
            case _:
                total += 64
    return total


def _write_size(write: r.Write) -> int:
    return 64 + sum(map(len, write.keys)) + sum(len(v) for v in write.values if v is not None)
