"""Records as the objects of `tools.wal.schema`."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal, assert_never

import msgspec

from rebalance.lives import INCARNATION_BITS
from rebalance.results import COMMITTED
from tools.shown import Values, value_hash
from tools.terminal import to_json, word
from tools.wal import schema as s
from tools.wal.records import version_text
from tools.wal.times import opened_text, time_text
from wal import Block
from wal import records as r
from wal.ids import DECISIONS, Namespace, whole_of

_PLAIN = bytes(byte for byte in range(0x21, 0x7F) if byte not in b'"\\')
"""Of a key: what JSON and a line have as it is."""
_TX, _END = ',"tx":"', '"}]}'


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
        self._brief = values is Values.NONE and keys in (Keys.TEXT, Keys.UTF8)
        self._bytes = _WRITTEN[keys]

    def lines(self, block: Block, records: Iterable[tuple[int, r.Record]], node: str = "") -> list[s.Object | msgspec.Raw]:
        """These records of a block as objects, or as what objects are in JSON: of a put of one plain key, as nearly every
        record is, none is made, so that it costs what a line does."""
        if not self._brief:
            return [self.object(lsn, block, record, node) for lsn, record in records]
        told: list[s.Object | msgspec.Raw] = []
        head = _head_of(block, node)
        for lsn, record in records:
            if type(record) is r.Update and len(record.writes) == 1:
                (write,) = record.writes
                keys, namespace = write.keys, write.namespace
                if (
                    len(keys) == 1
                    and not keys[0].translate(None, _PLAIN)
                    and (value := write.values[0]) is not None
                    and not write.origin
                    and write.answer is None
                    and namespace != DECISIONS
                ):
                    first = write.start + 1
                    stable = f',"stable":{write.stable}' if write.stable else ""
                    text = (
                        f'{{"type":"update","schema":{s.SCHEMA},"lsn":{lsn}{head}{{"namespace":{_quoted(namespace)},'
                        f'"partition":{write.partition},"epoch":{write.epoch},"first":{first},"last":{first},'
                        f'"entries":[{{"key":"{keys[0].decode()}","op":"put","counter":{first},"size":{len(value)}}}]'
                        f"{stable}{_TX if write.tx else ''}{whole_of(write.tx).hex()}{_END if write.tx else '}]}'}"
                    )
                    told.append(msgspec.Raw(text.encode()))
                    continue
            told.append(self.object(lsn, block, record, node))
        return told

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
                    tx=whole_of(tx).hex(),
                    partition=partition,
                    epoch=epoch,
                    writes=[self._write(write) for write in writes],
                    locks=[s.LockedKey(_name(ns), self._bytes(key)) for ns, key in locks],
                    participants=list(dict.fromkeys(participants)),
                    decided_in=decision,
                    issued_in=origin,
                    held=held,
                )
            case r.Outcome(tx, partition, epoch, commit, ranges):
                outcome: Literal["commit", "rollback"] = "commit" if commit else "rollback"
                spans = _counters(partition, ranges)
                return s.Outcome(
                    **head, tx=whole_of(tx).hex(), partition=partition, epoch=epoch, outcome=outcome, counters=spans
                )
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
                    s.Result(whole_of(tx).hex(), _decision(outcome), self._answer(said_.get(tx)))
                    for tx, outcome in zip(txs, outcomes, strict=True)
                ]
                return s.Results(**head, partition=partition, results=ended_, floor=floor.hex())
            case r.Forget(partition, epoch, answered):
                sessions = [s.Answered(session.hex(), sequence) for session, sequence in answered]
                return s.Forget(**head, partition=partition, epoch=epoch, sessions=sessions)
            case r.FragmentClear(namespace, partition, reason, gone, kept):
                return s.FragmentClear(
                    **head, namespace=_name(namespace), partition=partition, reason=reason, gone=gone, kept=kept
                )
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
            case r.Accepted(after, ballot, topology, step):
                version, told, is_step = version_text(topology, step), len(step or topology), bool(step)
                at = str(after)
                return s.Accepted(**head, after=at, ballot=str(ballot), version=version, bytes=told, step=is_step)
            case r.Committed(version_, topology, step):
                return s.Committed(**head, version=str(version_), bytes=len(step or topology), step=bool(step))
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
            case r.Origin(partition, epoch, tx, by, label, client, address, labels_all):
                return s.Origin(
                    **head,
                    tx=whole_of(tx).hex(),
                    partition=partition,
                    epoch=epoch,
                    by=by,
                    label=label,
                    client=client,
                    address=address,
                    labels_all=labels_all,
                    session_opened=opened_text(tx, block.time_ms),
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
            tx=whole_of(write.tx).hex(),
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


def _utf8(data: bytes) -> str:
    return data.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


_WRITTEN: dict[Keys, Callable[[bytes], str]] = {
    Keys.TEXT: word,
    Keys.UTF8: _utf8,
    Keys.HEX: bytes.hex,
    Keys.BASE64: lambda data: b2a_base64(data, newline=False).decode(),
}


def _decision(outcome: int) -> Literal["commit", "abort"]:
    return "commit" if outcome == COMMITTED else "abort"


def _counters(partition: int, ranges: Iterable[r.Range]) -> list[s.Counters]:
    return [s.Counters(_name(ns), partition, start + 1, start + delta) for ns, start, delta in ranges]


def _head_of(block: Block, node: str) -> str:
    """What stands between the LSN and the first write of each update of a block."""
    told = s.Update(
        schema=s.SCHEMA,
        lsn=0,
        time=time_text(block.time_ms),
        time_ms=block.time_ms,
        segment=block.segment,
        offset=block.offset,
        node=node,
        writes=[],
    )
    return to_json(told).partition('"lsn":0')[2].removesuffix("]}")


@lru_cache(maxsize=1024)
def _quoted(namespace: Namespace) -> str:
    return to_json(_name(namespace))


@lru_cache(maxsize=1024)
def _name(namespace: Namespace) -> str:
    return word(namespace.encode("utf-8", "surrogatepass"))
