"""Small logs to test with: records that can be told apart, and what a log holds after it was opened again."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.memory_disk import MemoryDisk
from wal import Log, LogSettings
from wal.disk import Disk
from wal.records import NoOp, Outcome, Prepare, Record, Update, Write

SMALL = LogSettings(segment_bytes=2048, total_bytes=1 << 20)


def update(n: int, size: int = 20, *, partition: int = 0, epoch: int = 1) -> Update:
    """The one-key update that takes counter `n`."""
    return Update([Write("acc", partition, epoch, n - 1, [b"key-%04d" % n], [bytes([n % 251]) * size])])


def prepare(tx: bytes, writes: list[Write], *, epoch: int = 1, origin: int = 0) -> Prepare:
    """A participant's vote for these writes, all of one partition."""
    return Prepare(tx, writes[0].partition, epoch, writes, [], [writes[0].partition], 0, origin)


def outcome(vote: Prepare, *, commit: bool = True, epoch: int = 0) -> Outcome:
    """The outcome of a vote."""
    ranges = [(w.namespace, w.start, w.delta) for w in vote.writes]
    return Outcome(vote.tx, vote.partition, epoch or vote.epoch, commit, ranges)


def no_op(start: int, delta: int, *, partition: int = 0, epoch: int = 1) -> NoOp:
    """A gap that was closed."""
    return NoOp(partition, epoch, [("acc", start, delta)])


def open_log(disk: Disk, settings: LogSettings = SMALL, *, from_lsn: int = 1, accept_loss: bool = False) -> Log:
    """The log of node n1."""
    return Log.open(disk, cluster="tests", node="n1", settings=settings, from_lsn=from_lsn, accept_loss=accept_loss)


def append(log: Log, *records: Record, durable: bool = True, now_ms: int = 0) -> int:
    """Append one block; time passes by a second a record unless it is given."""
    return log.append(records, now_ms=now_ms or 1_000 * log.next_lsn, durable=durable)


def records_of(log: Log, from_lsn: int = 1) -> list[Record]:
    """Everything that it replays."""
    return [record for block in log.replay(from_lsn) for record in block.records]


def reopened(disk: Disk, settings: LogSettings = SMALL, *, from_lsn: int = 1) -> list[Record]:
    """What the log on this disk holds when it is opened."""
    return records_of(open_log(disk, settings, from_lsn=from_lsn), from_lsn)


def filled(blocks: Sequence[Sequence[Record]], settings: LogSettings = SMALL, *, durable: bool = True) -> MemoryDisk:
    """A disk with a log of these blocks; the node then died without closing it."""
    disk = MemoryDisk()
    log = open_log(disk, settings)
    for block in blocks:
        append(log, *block, durable=durable)
    return disk
