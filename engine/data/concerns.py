"""Of which partitions and epochs a record speaks that a primary says to its copies, and how large it is."""

from __future__ import annotations

from typing import assert_never

from engine.state.ahead import KEYS_OF_WORK, LARGE_KEYS
from rebalance.ports import BYTES_OF_WORK
from rebalance.promotion import EPOCH_WORK
from wal import records as r
from wal.records import Prepare, Update

_OF_ONE = frozenset((Prepare, r.Outcome))


def about_one(record: r.Record) -> r.Write | r.Prepare | r.Outcome | None:
    """What says of which partition and epoch a record is, if it is of one and of a kind that comes all the time."""
    kind = type(record)
    if kind is Update:
        writes = record.writes  # type: ignore[union-attr]
        return writes[0] if len(writes) == 1 else None
    return record if kind in _OF_ONE else None  # type: ignore[return-value]  # which are these


LARGE_WORK = LARGE_KEYS // KEYS_OF_WORK


def work_of(record: r.Record) -> int:
    """How much work it is for a copy to take it: at least `LARGE_WORK` where a write of it is worked out before."""
    kind = type(record)
    if kind is Update or kind is Prepare or kind is r.History:
        writes = record.writes  # type: ignore[union-attr]  # of all three
        if len(writes) == 1 and len(values := writes[0].values) == 1:  # how it nearly always is
            value = values[0]
            return 2 + len(value) // BYTES_OF_WORK if value else 2
        keys = sum(len(write.keys) for write in writes)
        if keys <= LARGE_KEYS:
            size = sum(len(value) for write in writes for value in write.values if value is not None)
            alone = len(writes) - 2 if kind is Update else 0  # many of them were as many writes, each of one key
            return 2 + max(keys // KEYS_OF_WORK, alone) + size // BYTES_OF_WORK
    elif kind is r.Outcome:
        ranges = record.ranges  # type: ignore[union-attr]
        keys = ranges[0][2] if len(ranges) == 1 else sum(delta for _, _, delta in ranges)
    elif kind is r.EpochStart:
        return 2 + EPOCH_WORK * len(record.firsts)  # type: ignore[union-attr]
    elif kind is r.Stable:
        return 2 + len(record.counters)  # type: ignore[union-attr]
    else:
        return 2
    if keys < KEYS_OF_WORK:
        return 2
    return 2 + min(keys, LARGE_KEYS) // KEYS_OF_WORK  # what is larger is worked out in pieces, which say so themselves


def claims_of(record: r.Record) -> list[tuple[int, int]]:
    """(partition, epoch) of everything a primary may replicate; nothing for other records."""
    match record:
        case r.Update(writes) | r.History(writes):
            return [(w.partition, w.epoch) for w in writes]
        case (
            r.Prepare(partition=partition, epoch=epoch)
            | r.Outcome(partition=partition, epoch=epoch)
            | r.NoOp(partition=partition, epoch=epoch)
            | r.EpochStart(partition=partition, epoch=epoch)
            | r.Stable(partition=partition, epoch=epoch)
            | r.Compare(partition=partition, epoch=epoch)
            | r.Forget(partition=partition, epoch=epoch)
            | r.Origin(partition=partition, epoch=epoch)
        ):
            return [(partition, epoch)]
        case (
            r.Preload()
            | r.Results()
            | r.FragmentClear()
            | r.FragmentReady()
            | r.Undo()
            | r.Promised()
            | r.Accepted()
            | r.Committed()
            | r.Boot()
            | r.Claimed()
            | r.Checkpoint()
            | r.Trimmed()
        ):
            return []
        case _:
            assert_never(record)


def may_come_before(record: r.Record, epoch: int, reigning: int) -> bool:
    """Whether a copy in sync takes a record of another epoch than it has begun: what comes with epochs of its own, and what
    is prepared, which is issued again before the epoch that reigns begins."""
    return isinstance(record, r.History) or (isinstance(record, r.Prepare) and record.origin > 0 and epoch == reigning)
