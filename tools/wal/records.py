"""What a record of the log looks like to a person and to a program, and which records a reader asked for.

A line speaks as the engine's own stories do: `update acc/7(2,3)e1` are the counters 3 to 5 of fragment acc/7, issued in
epoch 1. Keys and values are users' data and may be anything: they are escaped, and values are not shown unless asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, assert_never

import msgspec

from engine import topology as topologies
from engine.core import INCARNATION_BITS
from engine.results import COMMITTED
from tools.reconcile.findings import HASH_BYTES, Values
from tools.terminal import word
from wal import records as r
from wal.ids import DECISIONS, Ballot, Namespace, TxId, Version, tx_name
from wal.records import kind_of


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which records are wanted: those that name all of this. `tx` is how a transaction's hexadecimal id begins."""

    namespace: Namespace | None = None
    partition: int | None = None
    key: bytes | None = None
    tx: str = ""

    @property
    def everything(self) -> bool:
        """Nothing in particular is asked for."""
        return self.namespace is None and self.partition is None and self.key is None and not self.tx

    def narrow(self, record: r.Record) -> r.Record | None:
        """The record with the writes that are wanted, or None if it has nothing to do with what is asked for."""
        if self.everything:
            return record
        match record:
            case r.Update(writes) | r.History(writes):
                kept = [write for write in writes if self._fits_write(write, write.tx)]
                return msgspec.structs.replace(record, writes=kept) if kept else None
            case r.Prepare(tx, partition, _, writes, locks):
                kept = [write for write in writes if self._fits_write(write, tx)]
                held = [(ns, key) for ns, key in locks if self._fits(ns, partition, [key], [tx])]
                bare = not writes and not locks and self._fits(None, partition, [], [tx])
                return msgspec.structs.replace(record, writes=kept, locks=held) if kept or held or bare else None
            case r.Outcome(tx, partition, _, _, ranges):
                wanted = any(self._fits(ns, partition, [], [tx]) for ns in _namespaces(ranges))
            case r.NoOp(partition, _, gaps):
                wanted = any(self._fits(ns, partition, [], []) for ns in _namespaces(gaps))
            case r.EpochStart(partition, _, firsts):
                wanted = any(self._fits(ns, partition, [], []) for ns in [None, *(ns for ns, _ in firsts)])
            case r.Preload(namespace, partition, _, _, keys) | r.Undo(namespace, partition, _, keys):
                wanted = self._fits(namespace, partition, keys, _decided(namespace, keys))
            case r.Results(partition, txs):
                wanted = self._fits(None, partition, [], txs)
            case r.Forget(partition):
                wanted = self._fits(None, partition, [], [])
            case r.FragmentClear(namespace, partition) | r.FragmentReady(namespace, partition):
                wanted = self._fits(namespace, partition, [], [])
            case r.Trimmed(_, dropped):
                wanted = any(self._fits(ns, partition, [], []) for ns, partition, _ in dropped)
            case r.Stable(partition, _, counters):
                wanted = any(self._fits(ns, partition, [], []) for ns, _ in counters)
            case r.Compare(partition):
                wanted = self._fits(None, partition, [], [])
            case r.Promised() | r.Accepted() | r.Committed() | r.Boot() | r.Claimed() | r.Checkpoint():
                wanted = False
            case _:
                assert_never(record)
        return record if wanted else None

    def _fits_write(self, write: r.Write, tx: TxId) -> bool:
        return self._fits(write.namespace, write.partition, write.keys, [tx, *_decided(write.namespace, write.keys)])

    def _fits(self, namespace: Namespace | None, partition: int, keys: Sequence[bytes], txs: Iterable[TxId]) -> bool:
        return (
            (self.namespace is None or namespace == self.namespace)
            and (self.partition is None or partition == self.partition)
            and (self.key is None or self.key in keys)
            and (not self.tx or any(tx.hex().startswith(self.tx) for tx in txs))
        )


def _namespaces(ranges: Iterable[r.Range]) -> list[Namespace | None]:
    """The namespaces of ranges; None if there are none, for a record that is about its partition alone."""
    return [ns for ns, _, _ in ranges] or [None]


def _decided(namespace: Namespace, keys: Sequence[bytes]) -> Sequence[TxId]:
    """The keys of a decision are transactions."""
    return keys if namespace == DECISIONS else ()


# For a person.


def line(lsn: int, time_ms: int, record: r.Record, values: Values = Values.NONE) -> str:
    """A record in one line; the form of each kind does not change."""
    return f"lsn={lsn} time={time_text(time_ms)} {kind_of(record)} {about(record, values)}".rstrip()


def time_text(time_ms: int) -> str:
    """A block's time, in UTC.

    >>> time_text(1_700_000_000_123)
    '2023-11-14T22:13:20.123Z'
    """
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_ms}ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def about(record: r.Record, values: Values) -> str:
    """What a record says, but for its kind."""
    match record:
        case r.Update(writes) | r.History(writes):
            return " ".join(_write(write, write.tx, values) for write in writes)
        case r.Prepare(tx, partition, epoch, writes, locks, participants, decision, origin):
            held = [f"locks={_name(ns)}/{partition}:{word(key)}" for ns, key in locks]
            parts = ",".join(map(str, participants))
            head = f"tx={tx_name(tx)} p{partition} e{epoch} decided-in=p{decision} participants={parts}{_issued(origin)}"
            return " ".join([head, *(_write(write, b"", values) for write in writes), *held])
        case r.Outcome(tx, partition, epoch, commit, ranges):
            verb = "commit" if commit else "rollback"
            return " ".join([f"tx={tx_name(tx)} p{partition} e{epoch} {verb}", *_ranges(partition, ranges)])
        case r.NoOp(partition, epoch, gaps):
            return " ".join([f"p{partition} e{epoch}", *_ranges(partition, gaps)])
        case r.EpochStart(partition, epoch, firsts, ended):
            begun = [f"{_name(ns)}/{partition} from {first}" for ns, first in firsts]
            return " ".join([f"p{partition} e{epoch}", *begun, *(f"without tx={tx_name(tx)}" for tx in ended)])
        case r.Preload(namespace, partition, epochs, counters, keys, found):
            rows = zip(keys, found, epochs, counters, strict=True)
            said = [f"{_entry(namespace, key, value, values)}@{epoch}.{counter}" for key, value, epoch, counter in rows]
            return " ".join([f"{_name(namespace)}/{partition} rows={len(keys)}", *said])
        case r.Results(partition, txs, outcomes):
            said = [f"{tx_name(tx)}={_outcome(outcome)}" for tx, outcome in zip(txs, outcomes, strict=True)]
            return " ".join([f"p{partition} results={len(txs)}", *said])
        case r.Forget(partition, epoch, answered):
            said = [f"{session.hex()}<={sequence}" for session, sequence in answered]
            return " ".join([f"p{partition} e{epoch} sessions={len(answered)}", *said])
        case r.FragmentClear(namespace, partition, reason, gone):
            return f"{_name(namespace)}/{partition} {'gone' if gone else 'loading'}: {word(reason.encode())}"
        case r.FragmentReady(namespace, partition, lwm, digest, epochs_, full):
            table = ",".join(f"{epoch}:{first}" for epoch, first in epochs_)
            way = "full" if full else "historical"
            return f"{_name(namespace)}/{partition} lwm={lwm} digest={digest:016x} epochs={table or '-'} {way}"
        case r.Undo(namespace, partition, above, keys):
            return " ".join([f"{_name(namespace)}/{partition} above={above}", *map(word, keys)])
        case r.Promised(after, ballot):
            return f"after={after} ballot={word(str(ballot).encode())}"
        case r.Accepted(after, ballot, topology):
            return f"after={after} ballot={word(str(ballot).encode())} version={_version(topology)}"
        case r.Committed(version, topology):
            return f"version={version} bytes={len(topology)}"
        case r.Boot(incarnation, at):
            return f"start={incarnation >> INCARNATION_BITS} incarnation={incarnation} at={at}"
        case r.Claimed(version, claims):
            said = [f"{word(c.node.encode())}:{c.incarnation}<={c.durable_lsn}" for c in claims]
            return " ".join([f"under={version}", *said])
        case r.Checkpoint(lsn):
            return f"up-to={lsn}"
        case r.Trimmed(first_lsn, dropped):
            return " ".join([f"below={first_lsn}", *(f"{_name(ns)}/{p}<={counter}" for ns, p, counter in dropped)])
        case r.Stable(partition, epoch, stable):
            return " ".join([f"p{partition} e{epoch}", *(f"{_name(ns)}/{partition}<={counter}" for ns, counter in stable)])
        case r.Compare(partition, epoch, node, round_):
            return f"p{partition} e{epoch} with={word(node.encode())} round={round_}"
        case _:
            assert_never(record)


def _write(write: r.Write, tx: TxId, values: Values) -> str:
    said = [f"{_name(write.namespace)}/{write.partition}({write.start},{write.delta})e{write.epoch}{_issued(write.origin)}"]
    if tx:
        said.append(f"tx={tx_name(tx)}")
    if write.closed:
        said.append("closed")
    said += [_entry(write.namespace, key, value, values) for key, value in zip(write.keys, write.values, strict=False)]
    return " ".join(said)


def _issued(origin: int) -> str:
    return f" issued-in=e{origin}" if origin else ""


def _entry(namespace: Namespace, key: bytes, value: bytes | None, values: Values) -> str:
    if namespace == DECISIONS:
        return f"{tx_name(key)}={'forgotten' if value is None else _outcome(value[0] if value else 0)}"
    if value is None:
        return f"{word(key)}=deleted"
    match values:
        case Values.NONE:
            return f"{word(key)}={len(value)}B"
        case Values.HASH:
            return f"{word(key)}={len(value)}B#{_hash(value)}"
        case Values.FULL:
            return f"{word(key)}={len(value)}B:{word(value)}"
        case _:
            assert_never(values)


def _outcome(outcome: int) -> str:
    return "commit" if outcome == COMMITTED else "abort"


def _ranges(partition: int, ranges: Iterable[r.Range]) -> Iterator[str]:
    return (f"{_name(ns)}/{partition}({start},{delta})" for ns, start, delta in ranges)


def _name(namespace: Namespace) -> str:
    return word(namespace.encode("utf-8", "surrogatepass"))


def _version(topology: bytes) -> str:
    try:
        return str(topologies.decode(topology).version) if topology else "-"
    except ValueError:
        return f"unknown({len(topology)}B)"


def _hash(value: bytes) -> str:
    return hashlib.blake2b(value, digest_size=HASH_BYTES).hexdigest()


# For a program.


def facts(record: r.Record | r.Write, values: Values) -> dict[str, Any]:
    """A record as JSON can carry it: its fields by their names, keys escaped, ids in hexadecimal."""
    found: dict[str, Any] = {}
    decisions = getattr(record, "namespace", "") == DECISIONS
    for name in record.__struct_fields__:
        value = getattr(record, name)
        match name:
            case "values":
                found[name] = [_value_facts(item, values) for item in value]
            case "writes":
                found[name] = [facts(write, values) for write in value]
            case "locks":
                found[name] = [[_name(ns), word(key)] for ns, key in value]
            case "topology":
                found[name] = {"version": _version(value), "bytes": len(value)}
            case "tx" | "floor":
                found[name] = value.hex()
            case _:
                found[name] = _plain(value, ids=name == "txs" or (decisions and name == "keys"))
    return found


def _plain(value: Any, *, ids: bool) -> Any:
    match value:
        case Version() | Ballot():
            return str(value)
        case bytes():
            return value.hex() if ids else word(value)
        case str():
            return _name(value)
        case list() | tuple():
            return [_plain(item, ids=ids) for item in value]
        case _:
            return value


def _value_facts(value: bytes | None, values: Values) -> dict[str, Any] | None:
    if value is None:
        return None
    match values:
        case Values.NONE:
            return {"size": len(value)}
        case Values.HASH:
            return {"size": len(value), "hash": _hash(value)}
        case Values.FULL:
            return {"size": len(value), "value": word(value)}
        case _:
            assert_never(values)
