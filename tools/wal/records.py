"""What a record of the log looks like to a person.

A line speaks as the engine's own stories do: `update acc/7(2,3)e1` are the counters 3 to 5 of fragment acc/7, issued in
epoch 1. Keys and values are users' data and may be anything: they are escaped, and values are not shown unless asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import assert_never

from rebalance.lives import INCARNATION_BITS
from rebalance.results import COMMITTED
from tools.shown import Values, value_hash
from tools.terminal import word
from tools.wal.origins import origin_text
from tools.wal.times import session_text, time_text
from wal import Block
from wal import records as r
from wal.ids import DECISIONS, EXPIRIES, Namespace, TxId, tx_name
from wal.records import kind_of


def lines(block: Block, values: Values = Values.NONE, head: str = "") -> list[str]:
    """The records of a block, each in one line that begins with `head`."""
    time = time_text(block.time_ms)
    return [
        f"{head}lsn={lsn} time={time} {_said(record, values, block.time_ms)}"
        for lsn, record in enumerate(block.records, block.first_lsn)
    ]


def line(lsn: int, time_ms: int, record: r.Record, values: Values = Values.NONE) -> str:
    """A record in one line; the form of each kind does not change."""
    return f"lsn={lsn} time={time_text(time_ms)} {_said(record, values, time_ms)}"


def _said(record: r.Record, values: Values, time_ms: int) -> str:
    if type(record) is r.Update and len(record.writes) == 1 and values is Values.NONE:  # nearly every record is one
        (write,) = record.writes
        keys, namespace = write.keys, write.namespace
        if len(keys) == 1 and write.tx and not write.origin and write.answer is None and namespace != DECISIONS:
            value = write.values[0]
            said = "deleted" if value is None else f"{len(value)}B"
            at = f"{_name(namespace)}/{write.partition}({write.start},1)e{write.epoch}"
            return f"update {at} tx={tx_name(write.tx)} {word(keys[0])}={said}"
    return f"{kind_of(record)} {about(record, values, time_ms)}".rstrip()


def about(record: r.Record, values: Values, time_ms: int) -> str:  # noqa: C901  # one case for each record, flat
    """What a record that was logged then says, but for its kind."""
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
        case r.Results(partition, txs, outcomes, _, answers):
            told = {tx: f" {_answer(answer, values)}" for tx, answer in answers}
            said = [
                f"{tx_name(tx)}={_outcome(outcome)}{told.get(tx, '')}" for tx, outcome in zip(txs, outcomes, strict=True)
            ]
            return " ".join([f"p{partition} results={len(txs)}", *said])
        case r.Forget(partition, epoch, answered):
            said = [f"{session.hex()}<={sequence}" for session, sequence in answered]
            return " ".join([f"p{partition} e{epoch} sessions={len(answered)}", *said])
        case r.FragmentClear(namespace, partition, reason, gone, kept):
            how = "gone" if gone else "loading, rows kept" if kept else "loading"
            return f"{_name(namespace)}/{partition} {how}: {word(reason.encode())}"
        case r.FragmentReady(namespace, partition, lwm, digest, epochs_, full):
            table = ",".join(f"{epoch}:{first}" for epoch, first in epochs_)
            way = "full" if full else "historical"
            return f"{_name(namespace)}/{partition} lwm={lwm} digest={digest:016x} epochs={table or '-'} {way}"
        case r.Undo(namespace, partition, above, keys):
            return " ".join([f"{_name(namespace)}/{partition} above={above}", *map(word, keys)])
        case r.Promised(after, ballot):
            return f"after={after} ballot={word(str(ballot).encode())}"
        case r.Accepted(after, ballot, topology, step):
            return f"after={after} ballot={word(str(ballot).encode())} version={version_text(topology, step)}"
        case r.Committed(version, topology, step):
            return f"version={version} step bytes={len(step)}" if step else f"version={version} bytes={len(topology)}"
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
        case r.Origin():
            whose = " labels=all-of-its-session" if record.labels_all else ""
            opened = session_text(record.tx, time_ms)
            return f"tx={tx_name(record.tx)} p{record.partition} e{record.epoch} {origin_text(record)}{whose}{opened}"
        case _:
            assert_never(record)


def _write(write: r.Write, tx: TxId, values: Values) -> str:
    said = [f"{_name(write.namespace)}/{write.partition}({write.start},{write.delta})e{write.epoch}{_issued(write.origin)}"]
    if tx:
        said.append(f"tx={tx_name(tx)}")
    if write.closed:
        said.append("closed")
    said += [_entry(write.namespace, key, value, values) for key, value in zip(write.keys, write.values, strict=False)]
    if write.answer is not None:
        said.append(_answer(write.answer, values))
    return " ".join(said)


def _answer(answer: bytes, values: Values) -> str:
    """What a client was told: it may be somebody's data, as values are."""
    return f"answer={_shown(answer, values)}"


def _issued(origin: int) -> str:
    return f" issued-in=e{origin}" if origin else ""


def _entry(namespace: Namespace, key: bytes, value: bytes | None, values: Values) -> str:
    if namespace == DECISIONS:
        return f"{tx_name(key)}={'forgotten' if value is None else _outcome(value[0] if value else 0)}"
    if namespace == EXPIRIES:
        of, _, key = key.partition(b"\0")
        return f"{word(of)}:{word(key)}={'deleted' if value is None else word(value.replace(b' ', b'@'))}"
    if value is None:
        return f"{word(key)}=deleted"
    return f"{word(key)}={_shown(value, values)}"


def _shown(value: bytes, values: Values) -> str:
    match values:
        case Values.NONE:
            return f"{len(value)}B"
        case Values.HASH:
            return f"{len(value)}B#{value_hash(value)}"
        case Values.FULL:
            return f"{len(value)}B:{word(value)}"
        case _:
            assert_never(values)


def _outcome(outcome: int) -> str:
    return "commit" if outcome == COMMITTED else "abort"


def _ranges(partition: int, ranges: Iterable[r.Range]) -> Iterator[str]:
    return (f"{_name(ns)}/{partition}({start},{delta})" for ns, start, delta in ranges)


@lru_cache(maxsize=1024)
def _name(namespace: Namespace) -> str:
    return word(namespace.encode("utf-8", "surrogatepass"))


def version_text(topology: bytes, step: bytes = b"") -> str:
    """The version of an encoded map, or of what a step makes; `-` for none."""
    from rebalance import steps  # noqa: PLC0415  # maps are seldom, and their hashes come with OpenSSL
    from rebalance import table as topologies  # noqa: PLC0415

    try:
        if step:
            return str(steps.decode_step(step).version)
        return str(topologies.decode(topology).version) if topology else "-"
    except ValueError:
        return f"unknown({len(topology or step)}B)"
