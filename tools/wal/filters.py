"""Which records of a log a reader asked for, and which blocks need not be decoded to know that they have none.

A filter is a conjunction. A record is kept with those of its writes that are wanted; one that does not speak of what is
asked for at all (a checkpoint, when a key is) is not. Whatever a wanted record must contain byte for byte is a `needle`:
a block without it is verified and not decoded, which is ten times cheaper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import assert_never

import msgspec

from engine.errors import UsageError
from wal import RawBlock
from wal import records as r
from wal.footer import Ask, naming
from wal.ids import DECISIONS, SESSION_BYTES, TX_ID_BYTES, Namespace, TxId
from wal.records import kind_of

Span = tuple[int, int]
"""From the first to the last, both included."""


def check_range(from_lsn: int, to_lsn: int | None) -> None:
    """Raise UsageError for a range that ends before it begins."""
    if to_lsn is not None and to_lsn < from_lsn:
        raise UsageError(
            f"--to-lsn is {to_lsn} and --from-lsn is {from_lsn}: expected a range that ends where it begins or later"
        )


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which records are wanted: those that name all of this. `tx` is how a transaction's hexadecimal id begins.

    `times` are milliseconds since 1970, of the block. `epochs` and `counters` are of the fragment that a record is about.
    `named` are the transactions and sessions that have the label, as far as it was said: more are learned on the way.
    """

    namespace: Namespace | None = None
    partition: int | None = None
    key: bytes | None = None
    prefix: bytes | None = None
    tx: str = ""
    label: str | None = None
    named: dict[bytes, None] = {}
    kinds: frozenset[str] = frozenset()
    epochs: Span | None = None
    counters: Span | None = None
    times: Span | None = None

    @property
    def plain(self) -> bool:
        """Nothing is asked for that is inside a record."""
        return not (self.tx or self.kinds) and all(
            asked is None
            for asked in (self.namespace, self.partition, self.key, self.prefix, self.label, self.epochs, self.counters)
        )

    @property
    def needles(self) -> list[bytes]:
        """The bytes that a block must have, all of them, if it has a wanted record."""
        found = [text for text in (self.key, self.prefix) if text]
        found += [self.namespace.encode("utf-8", "surrogatepass")] if self.namespace else []
        found.append(bytes.fromhex(self.tx[: len(self.tx) // 2 * 2]))
        if len(self.kinds) == 1:
            found += [kind.encode() for kind in self.kinds]
        return sorted(filter(None, found), key=len, reverse=True)

    def chooser(self) -> Chooser | None:
        """Whether a block may have a wanted record, if that can be told without decoding it."""
        if not (self.needles or self.times is not None or self.label is not None):
            return None
        return Chooser(self.needles, self.times, self.label, self.named)

    def asker(self) -> Ask | None:
        """Where sealed segments may have a wanted record, if their footers can tell: of one transaction they can."""
        tx = bytes.fromhex(self.tx) if len(self.tx) == 2 * TX_ID_BYTES else None
        return None if tx is None else naming([tx])

    def of(self, records: Sequence[r.Record]) -> Sequence[r.Record]:
        """Of these records what is wanted."""
        if self.plain:
            return records
        return [kept for record in records if (kept := self.narrow(record)) is not None]

    def narrow(self, record: r.Record) -> r.Record | None:
        """The record with the writes that are wanted, or None if it has nothing to do with what is asked for."""
        if self.plain:
            return record
        if self.kinds and kind_of(record) not in self.kinds:
            return None
        if self.label is not None and isinstance(record, r.Origin):
            self.note(record)
        match record:
            case r.Update(writes) | r.History(writes):
                kept = [write for write in writes if self._fits_write(write, write.tx)]
                return msgspec.structs.replace(record, writes=kept) if kept else None
            case r.Prepare(tx, partition, epoch, writes, locks):
                kept = [write for write in writes if self._fits_write(write, tx)]
                held = [(ns, key) for ns, key in locks if self._fits(ns, partition, [key], [tx], epoch)]
                bare = not writes and not locks and self._fits(None, partition, [], [tx], epoch)
                return msgspec.structs.replace(record, writes=kept, locks=held) if kept or held or bare else None
            case r.Outcome(tx, partition, epoch, _, ranges):
                wanted = any(self._fits(ns, partition, [], [tx], epoch=epoch, counters=at) for ns, at in _spans(ranges))
            case r.NoOp(partition, epoch, gaps):
                wanted = any(self._fits(ns, partition, [], [], epoch=epoch, counters=at) for ns, at in _spans(gaps))
            case r.EpochStart(partition, epoch, firsts):
                begun = [(None, None), *((ns, (first, first)) for ns, first in firsts)]
                wanted = any(self._fits(ns, partition, [], [], epoch=epoch, counters=at) for ns, at in begun)
            case r.Preload(namespace, partition, epochs, counters, keys):
                wanted = self._fits(namespace, partition, keys, _decided(namespace, keys)) and any(
                    _within(epoch, self.epochs) and _within(counter, self.counters)
                    for epoch, counter in zip(epochs, counters, strict=True)
                )
            case r.Undo(namespace, partition, above, keys):
                at = (above + 1, above + 1)
                wanted = self.epochs is None and self._fits(
                    namespace, partition, keys, _decided(namespace, keys), epoch=0, counters=at
                )
            case r.Results(partition, txs):
                wanted = self.epochs is None and self._fits(None, partition, [], txs)
            case r.Forget(partition, epoch):
                wanted = self._fits(None, partition, [], [], epoch)
            case r.FragmentClear(namespace, partition):
                wanted = self.epochs is None and self._fits(namespace, partition, [], [])
            case r.FragmentReady(namespace, partition, lwm, _, epochs_):
                known = [epoch for epoch, _ in epochs_ if _within(epoch, self.epochs)]
                wanted = bool(known or self.epochs is None) and self._fits(
                    namespace, partition, [], [], epoch=0, counters=(lwm, lwm)
                )
            case r.Trimmed(_, dropped):
                gone = [(ns, partition, (counter, counter)) for ns, partition, counter in dropped]
                wanted = self.epochs is None and any(self._fits(ns, p, [], [], epoch=0, counters=at) for ns, p, at in gone)
            case r.Stable(partition, epoch, counters_):
                wanted = any(self._fits(ns, partition, [], [], epoch=epoch, counters=(at, at)) for ns, at in counters_)
            case r.Compare(partition, epoch):
                wanted = self._fits(None, partition, [], [], epoch)
            case r.Origin(partition, epoch, tx):
                wanted = self._fits(None, partition, [], [tx], epoch)
            case r.Promised() | r.Accepted() | r.Committed() | r.Boot() | r.Claimed() | r.Checkpoint():
                wanted = self._only_kinds
            case _:
                assert_never(record)
        return record if wanted else None

    def note(self, record: r.Origin) -> None:
        """A transaction, or all of a session, may have the label that is asked for."""
        if record.label == self.label:
            self.named[record.tx[:SESSION_BYTES] if record.labels_all else record.tx] = None

    @property
    def _only_kinds(self) -> bool:
        return bool(self.kinds) and msgspec.structs.replace(self, kinds=frozenset()).plain

    def _fits_write(self, write: r.Write, tx: TxId) -> bool:
        txs = [tx, *_decided(write.namespace, write.keys)]
        return self._fits(
            write.namespace,
            write.partition,
            write.keys,
            txs,
            epoch=write.epoch,
            counters=(write.start + 1, write.start + write.delta),
        )

    def _fits(
        self,
        namespace: Namespace | None,
        partition: int,
        keys: Sequence[bytes],
        txs: Sequence[TxId],
        epoch: int | None = None,
        counters: Span | None = None,
    ) -> bool:
        """`epoch` is None, or 0, where it was asked already."""
        prefix = self.prefix
        return (
            (self.namespace is None or namespace == self.namespace)
            and (self.partition is None or partition == self.partition)
            and (self.key is None or self.key in keys)
            and (prefix is None or any(key.startswith(prefix) for key in keys))
            and (not self.tx or any(tx.hex().startswith(self.tx) for tx in txs))
            and (self.label is None or any(tx in self.named or tx[:SESSION_BYTES] in self.named for tx in txs))
            and (not epoch or _within(epoch, self.epochs))
            and (self.counters is None or (counters is not None and _overlap(counters, self.counters)))
        )


class Chooser:
    """Tells of a block that has verified whether it may have a wanted record."""

    def __init__(
        self, needles: Sequence[bytes], times: Span | None, label: str | None, named: Mapping[bytes, None]
    ) -> None:
        self._needles = needles
        self._times = times
        self._label = None if label is None else label.encode("utf-8", "surrogatepass")
        self._named = named

    def __call__(self, raw: RawBlock) -> bool:
        """Whether it is to be decoded."""
        data = raw.data
        if not (_within(raw.header.time_ms, self._times) and all(needle in data for needle in self._needles)):
            return False
        return self._label is None or self._label in data or any(name in data for name in self._named)


def _within(number: int, span: Span | None) -> bool:
    return span is None or span[0] <= number <= span[1]


def _overlap(one: Span, other: Span) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _spans(ranges: Iterable[r.Range]) -> Iterator[tuple[Namespace | None, Span | None]]:
    """The counters of ranges by namespace; None if there are none, for a record that is about its partition alone."""
    nothing = True
    for ns, start, delta in ranges:
        nothing = False
        yield ns, (start + 1, start + delta)
    if nothing:
        yield None, None


def _decided(namespace: Namespace, keys: Sequence[bytes]) -> Sequence[TxId]:
    """The keys of a decision are transactions."""
    return keys if namespace == DECISIONS else ()
