"""Records as the objects of `tools.wal.schema`."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal, assert_never

from rebalance import table as topologies
from rebalance.lives import INCARNATION_BITS
from rebalance.results import COMMITTED
from tools.reconcile.findings import HASH_BYTES, Values
from tools.terminal import word
from tools.wal import schema as s
from tools.wal.times import time_text
from wal import Block
from wal import records as r
from wal.ids import DECISIONS, Namespace


class Keys(StrEnum):
    """How bytes of users (keys, and values) are written."""

    TEXT = "text"  # as a dump prints them: printable ASCII, everything else as \xNN
    UTF8 = "utf8"  # as they are; a backslash doubled, and what is no UTF-8 as \xNN
    HEX = "hex"
    BASE64 = "base64"


class Told:
    """Makes objects of records, all in the same way: what is shown of `values`, and how bytes are written."""

    def __init__(self, values: Values = Values.NONE, keys: Keys = Keys.TEXT) -> None:
        self._head: dict[str, Any] = {}
        self._values = values
        self._bytes = _WRITTEN[keys]

    def object(self, lsn: int, block: Block, record: r.Record, node: str = "") -> s.Object:  # noqa: C901  # one case for each record, flat
        """A record as it stands in a block."""
        if isinstance(record, r.Update):  # nearly every record is one
            return s.Update(
                schema=s.SCHEMA,
                lsn=lsn,
                time=time_text(block.time_ms),
                time_ms=block.time_ms,
                segment=block.segment,
                offset=block.offset,
                node=node,
                writes=[self._write(write) for write in record.writes],
            )
        head = self._head
        if head.get("offset") != block.offset or head["segment"] != block.segment or head["node"] != node:
            head = self._head = {
                "schema": s.SCHEMA,
                "time": time_text(block.time_ms),
                "time_ms": block.time_ms,
                "segment": block.segment,
                "offset": block.offset,
                "node": node,
            }
        head["lsn"] = lsn
        match record:
            case r.Prepare(tx, partition, epoch, writes, locks, participants, decision, origin, held):
                return s.Prepare(
                    **head,
                    tx=tx.hex(),
                    partition=partition,
                    epoch=epoch,
                    writes=[self._write(write) for write in writes],
                    locks=[s.LockedKey(_name(ns), self._bytes(key)) for ns, key in locks],
                    participants=participants,
                    decided_in=decision,
                    issued_in=origin,
                    held=held,
                )
            case r.Outcome(tx, partition, epoch, commit, ranges):
                outcome: Literal["commit", "rollback"] = "commit" if commit else "rollback"
                spans = _counters(partition, ranges)
                return s.Outcome(**head, tx=tx.hex(), partition=partition, epoch=epoch, outcome=outcome, counters=spans)
            case r.NoOp(partition, epoch, gaps):
                return s.NoOp(**head, partition=partition, epoch=epoch, counters=_counters(partition, gaps))
            case r.EpochStart(partition, epoch, firsts, ended):
                begun = [s.Point(_name(ns), partition, first) for ns, first in firsts]
                return s.EpochStart(
                    **head, partition=partition, epoch=epoch, firsts=begun, ended=[tx.hex() for tx in ended]
                )
            case r.History(writes):
                return s.History(**head, writes=[self._write(write) for write in writes])
            case r.Preload(namespace, partition):
                return s.Preload(**head, namespace=_name(namespace), partition=partition, entries=self._rows(record))
            case r.Results(partition, txs, outcomes, floor, answers):
                said_ = dict(answers)
                ended_ = [
                    s.Result(tx.hex(), _decision(outcome), self._answer(said_.get(tx)))
                    for tx, outcome in zip(txs, outcomes, strict=True)
                ]
                return s.Results(**head, partition=partition, results=ended_, floor=floor.hex())
            case r.Forget(partition, epoch, answered):
                sessions = [s.Answered(session.hex(), sequence) for session, sequence in answered]
                return s.Forget(**head, partition=partition, epoch=epoch, sessions=sessions)
            case r.FragmentClear(namespace, partition, reason, gone):
                return s.FragmentClear(**head, namespace=_name(namespace), partition=partition, reason=reason, gone=gone)
            case r.FragmentReady(namespace, partition, lwm, digest, table, full):
                return s.FragmentReady(
                    **head,
                    namespace=_name(namespace),
                    partition=partition,
                    lwm=lwm,
                    digest=f"{digest:016x}",
                    epochs=[s.Reign(epoch, first) for epoch, first in table],
                    full=full,
                )
            case r.Undo(namespace, partition, above, keys):
                gone_ = [self._key(namespace, key) for key in keys]
                return s.Undo(**head, namespace=_name(namespace), partition=partition, above=above, keys=gone_)
            case r.Promised(after, ballot):
                return s.Promised(**head, after=str(after), ballot=str(ballot))
            case r.Accepted(after, ballot, topology):
                version = version_text(topology)
                return s.Accepted(**head, after=str(after), ballot=str(ballot), version=version, bytes=len(topology))
            case r.Committed(version_, topology):
                return s.Committed(**head, version=str(version_), bytes=len(topology))
            case r.Boot(incarnation, at, before):
                lives = [s.Life(earlier, ended_at) for earlier, ended_at in before]
                start = incarnation >> INCARNATION_BITS
                return s.Boot(**head, incarnation=incarnation, start=start, at=at, before=lives)
            case r.Claimed(version_, claims):
                said = [s.Claim(c.node, c.allocation, c.incarnation, c.durable_lsn) for c in claims]
                return s.Claimed(**head, version=str(version_), claims=said)
            case r.Checkpoint(up_to):
                return s.Checkpoint(**head, up_to=up_to)
            case r.Trimmed(first_lsn, dropped):
                points = [s.Point(_name(ns), partition, counter) for ns, partition, counter in dropped]
                return s.Trimmed(**head, first_lsn=first_lsn, dropped=points)
            case r.Stable(partition, epoch, counters):
                points = [s.Point(_name(ns), partition, counter) for ns, counter in counters]
                return s.Stable(**head, partition=partition, epoch=epoch, counters=points)
            case r.Compare(partition, epoch, copy_on, round_):
                return s.Compare(**head, partition=partition, epoch=epoch, copy_on=copy_on, round=round_)
            case r.Origin(partition, epoch, tx, by, label, client, address):
                return s.Origin(
                    **head,
                    tx=tx.hex(),
                    partition=partition,
                    epoch=epoch,
                    by=by,
                    label=label,
                    client=client,
                    address=address,
                )
            case _:
                assert_never(record)

    def _write(self, write: r.Write) -> s.Write:
        namespace, first, keys = write.namespace, write.start + 1, write.keys
        if len(keys) == 1:
            entries = [self.entry(namespace, keys[0], write.values[0], first)]
        else:
            rows = zip(keys, write.values, strict=False)
            entries = [self.entry(namespace, key, value, at) for at, (key, value) in enumerate(rows, first)]
        return s.Write(
            _name(namespace),
            write.partition,
            write.epoch,
            first,
            last=write.start + (write.closed or len(keys)),
            entries=entries,
            stable=write.stable,
            tx=write.tx.hex(),
            issued_in=write.origin,
            closed=write.closed > 0,
            answer=self._answer(write.answer) if write.answer is not None else None,
        )

    def _rows(self, record: r.Preload) -> list[s.Entry]:
        rows = zip(record.keys, record.values, record.epochs, record.counters, strict=True)
        return [
            self.entry(record.namespace, key, value, counter, epoch)
            if counter
            else s.Entry(self._key(record.namespace, key), "absent", 0, epoch)
            for key, value, epoch, counter in rows
        ]

    def entry(self, namespace: Namespace, key: bytes, value: bytes | None, counter: int, epoch: int = 0) -> s.Entry:
        """One key with what was written."""
        if namespace == DECISIONS:
            if value is None:
                return s.Entry(key.hex(), "forget", counter, epoch)
            return s.Entry(key.hex(), "decide", counter, epoch, decision=_decision(value[0] if value else 0))
        name = self._bytes(key)
        if value is None:
            return s.Entry(name, "delete", counter, epoch)
        match self._values:
            case Values.NONE:
                return s.Entry(name, "put", counter, epoch, len(value))
            case Values.HASH:
                return s.Entry(name, "put", counter, epoch, size=len(value), hash=value_hash(value))
            case Values.FULL:
                return s.Entry(name, "put", counter, epoch, size=len(value), hash="", value=self._bytes(value))
            case _:
                assert_never(self._values)

    def _answer(self, answer: bytes | None) -> s.Answer | None:
        if answer is None:
            return None
        shown = self._bytes(answer) if self._values is Values.FULL else None
        return s.Answer(len(answer), value_hash(answer) if self._values is Values.HASH else "", shown)

    def _key(self, namespace: Namespace, key: bytes) -> str:
        return key.hex() if namespace == DECISIONS else self._bytes(key)


def version_text(topology: bytes) -> str:
    """The version of an encoded map; `-` for none."""
    try:
        return str(topologies.decode(topology).version) if topology else "-"
    except ValueError:
        return f"unknown({len(topology)}B)"


def value_hash(value: bytes) -> str:
    """How a value is told from another without being shown."""
    return hashlib.blake2b(value, digest_size=HASH_BYTES).hexdigest()


def _utf8(data: bytes) -> str:
    return data.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


_WRITTEN: dict[Keys, Callable[[bytes], str]] = {
    Keys.TEXT: word,
    Keys.UTF8: _utf8,
    Keys.HEX: bytes.hex,
    Keys.BASE64: lambda data: base64.b64encode(data).decode(),
}


def _decision(outcome: int) -> Literal["commit", "abort"]:
    return "commit" if outcome == COMMITTED else "abort"


def _counters(partition: int, ranges: Iterable[r.Range]) -> list[s.Counters]:
    return [s.Counters(_name(ns), partition, start + 1, start + delta) for ns, start, delta in ranges]


@lru_cache(maxsize=1024)
def _name(namespace: Namespace) -> str:
    return word(namespace.encode("utf-8", "surrogatepass"))
