"""What the logs tell of each finding: the last record of a key in every node's log, and where histories part.

Only the blocks that can speak of fragments with findings are read, by the footers of their segments; a log is read once
for all findings that are asked about. A log may hold writes that were undone: the epoch table of its copy says which
epoch issued a counter, and a write of another one is no part of the history.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from engine.offline.directory import FragmentView, State
from tools.reconcile.findings import AGREED, Facts, Finding, Kind, raw_key
from tools.reconcile.task import S
from tools.shown import printable
from tools.wal.origins import Origins
from wal import records as r
from wal.footer import speaking_of
from wal.ids import CLIENTS, COUNTER_MAX, SESSION_BYTES, Fragment, NodeId, TxId, tx_name
from wal.packed import Packed, PackedBlock, PackedHistory, PackedUpdate, Skimmed, kind_of, skim
from wal.seeking import seek

PARTED = (Kind.EPOCH_FORK, Kind.DIGEST_MISMATCH)
Maps = Sequence[tuple[int, str]]
"""The LSN and the version of each committed map in a log, ascending."""


class Trace(msgspec.Struct, frozen=True, gc=False):
    """One update in one log. `value` is what it wrote, None for a delete; `closed`: it closed a gap and wrote nothing."""

    lsn: int
    time_ms: int
    record: str
    epoch: int
    counter: int
    key: bytes
    value: bytes | None
    tx: TxId
    issued: int
    closed: bool = False
    label: str = ""

    def facts(self) -> Facts:
        """For a report. The id of a transaction begins with the session of its client."""
        facts: Facts = {"lsn": self.lsn, "time_ms": self.time_ms, "record": self.record}
        facts |= {"epoch": self.epoch, "counter": self.counter}
        facts["op"] = "none" if self.closed else "delete" if self.value is None else "put"
        if self.tx:
            facts |= {"tx": tx_name(self.tx), "client": self.tx[:SESSION_BYTES].hex()}
        if self.label:
            facts["label"] = self.label
        return facts

    def same(self, other: Trace) -> bool:
        """Whether both logs tell the same of this counter, whoever issued it again."""
        return (self.issued, self.key, self.value, self.closed) == (other.issued, other.key, other.value, other.closed)


class Asked:
    """What is asked of one copy of one fragment: the newest update of some keys, all updates of some counters.

    `known`: the counters of the newest updates of keys of which another log, of the same history, has told already. They
    are looked for nowhere else, which spares the opening of nearly all writes.
    """

    def __init__(
        self,
        epochs: Iterable[tuple[int, int]],
        keys: Iterable[bytes],
        runs: Iterable[tuple[int, int]],
        known: Mapping[bytes, int] = MappingProxyType({}),
    ) -> None:
        self.keys = dict.fromkeys(keys)
        self.runs = sorted(runs)
        self.newest: dict[bytes, Trace] = {}
        self.counters: dict[int, Trace] = {}
        self.searched = [key for key in self.keys if key not in known]
        self._of_known = {key: known[key] for key in self.keys if key in known}
        self.known = sorted(set(self._of_known.values()))
        self._epochs, self._firsts = [e for e, _ in epochs], [first for _, first in epochs]

    @property
    def between(self) -> tuple[int, int]:
        """All that is asked for lies above the first of these counters, up to the second."""
        return (self.known[0] - 1, self.known[-1]) if self.sought else (-1, COUNTER_MAX)

    def has(self, write: Packed) -> bool:
        """Whether a write has one of the counters, as far as its length in bytes tells."""
        known, start = self.known, write.start
        if not known or start >= known[-1]:
            return False
        counter = known[bisect_right(known, start)]
        return counter - start <= len(write.keys) and counter <= write.end

    def may_be_in(self, write: Packed) -> bool:
        """Whether a write that has none of the counters has to be opened: one of the other keys is among its bytes."""
        if self.runs:
            return True
        if not self.searched:
            return False
        packed = bytes(write.keys)
        return any(key in packed for key in self.searched)

    @property
    def sought(self) -> list[int]:
        """The counters that are enough to know; none if more has to be looked for."""
        return [] if self.runs or self.searched else self.known

    @property
    def is_answered(self) -> bool:
        """Whether all of these were found."""
        return all(key in self.newest and self.newest[key].counter >= c for key, c in self._of_known.items())

    def take(self, trace: Trace) -> None:
        """An update that the log has."""
        at = bisect_right(self._firsts, trace.counter)
        if at and self._epochs[at - 1] != trace.epoch:
            return  # it was undone, and its counter issued again
        if not trace.closed and trace.key in self.keys:
            held = self.newest.get(trace.key)
            if held is None or held.counter <= trace.counter:
                self.newest[trace.key] = trace
        if any(first <= trace.counter <= last for first, last in self.runs):
            self.counters[trace.counter] = trace

    def label(self, origins: Origins) -> None:
        """Say what its clients call the transactions that were found."""
        self.newest = {key: _labelled(trace, origins) for key, trace in self.newest.items()}
        self.counters = {counter: _labelled(trace, origins) for counter, trace in self.counters.items()}


def _labelled(trace: Trace, origins: Origins) -> Trace:
    origin = origins.of(trace.tx, 0, 0) if trace.tx else None
    return msgspec.structs.replace(trace, label=origin.label) if origin is not None and origin.label else trace


def ask(state: State, asked: Mapping[Fragment, Asked]) -> None:
    """Read what is asked of one node's log, as far as its state was folded."""
    ask_log(state.path / "wal", state.lsn, asked)


def ask_log(wal: Path, to_lsn: int, asked: Mapping[Fragment, Asked]) -> None:
    """Read what is asked of a log, up to an LSN, 0: to its end: counters where they should stand, and once more where one
    is not there. What does not verify is left out: it was told before."""
    _ask(wal, to_lsn, asked, {name: one.sought for name, one in asked.items()})
    again = {name: one for name, one in asked.items() if one.sought and not one.is_answered}
    if again:
        _ask(wal, to_lsn, again, dict.fromkeys(again, ()))
    origins = Origins()

    def take(block: PackedBlock) -> None:
        for record in block.records:
            if isinstance(record, r.Origin):
                origins.note(record)

    skim(wal, take, to_lsn=to_lsn or None, ask=speaking_of([CLIENTS]))
    for one in asked.values():
        one.label(origins)


def _ask(wal: Path, to_lsn: int, asked: Mapping[Fragment, Asked], fragments: Mapping[Fragment, Sequence[int]]) -> None:
    prepared: dict[tuple[TxId, int], list[tuple[PackedBlock, int, r.Prepare]]] = {}
    near = _Near(asked)

    def take(block: PackedBlock) -> None:
        written, others = _apart(block)
        for lsn, record, write in near.writes(written):
            one = asked.get(write.fragment)
            if one is not None and (one.has(write) or one.may_be_in(write)):
                _written(asked, write.opened(), lsn, block.time_ms, kind_of(record))
        for lsn, other in others:
            match other:
                case r.Prepare(tx, partition):
                    prepared.setdefault((tx, partition), []).append((block, lsn, other))
                case r.Outcome(tx, partition, epoch, commit, ranges):
                    issues = prepared.pop((tx, partition), [])
                    if commit and issues:
                        within, at, prepare = next((x for x in issues if x[2].epoch == epoch), issues[-1])
                        for held in prepare.writes:
                            _written(asked, held, at, within.time_ms, kind_of(prepare))
                    elif not commit:
                        _closed(asked, partition, epoch, ranges, lsn=lsn, time_ms=block.time_ms, record="outcome", tx=tx)
                case r.NoOp(partition, epoch, ranges):
                    _closed(asked, partition, epoch, ranges, lsn=lsn, time_ms=block.time_ms, record="noop", tx=b"")
                case _:
                    pass

    if all(fragments.values()):
        seek(wal, fragments, take, to_lsn=to_lsn or None)
    else:
        skim(wal, take, to_lsn=to_lsn or None, ask=speaking_of(fragments))


class _Near:
    """Of each partition, below which counters and up to which ones all lies that is asked for."""

    def __init__(self, asked: Mapping[Fragment, Asked]) -> None:
        self._above: dict[int, int] = {}
        self._up_to: dict[int, int] = {}
        for (_, number), one in asked.items():
            above, up_to = one.between
            self._above[number] = min(above, self._above.get(number, above))
            self._up_to[number] = max(up_to, self._up_to.get(number, up_to))

    def writes(self, records: Iterable[tuple[int, Any]]) -> list[tuple[int, PackedUpdate | PackedHistory, Packed]]:
        """The writes that may have some of it, each with its LSN and its record. Nearly all others are passed over here: a
        key has two bytes at least, so that there are no more of them than half of the bytes."""
        above, up_to = self._above, self._up_to.get
        return [
            (lsn, record, write)
            for lsn, record in records
            for write in record.writes
            if write.start < up_to(write.partition, 0) and write.start + len(write.keys) // 2 > above[write.partition]
        ]


_WRITING = frozenset((PackedUpdate, PackedHistory))


def _apart(block: PackedBlock) -> tuple[Iterable[tuple[int, Skimmed]], list[tuple[int, Skimmed]]]:
    """The records of a block that have writes, and the others, each with its LSN. Nearly all blocks have no others."""
    records = enumerate(block.records, block.first_lsn)
    if _WRITING.issuperset(map(type, block.records)):
        return records, []
    whole = list(records)
    return [x for x in whole if type(x[1]) in _WRITING], [x for x in whole if type(x[1]) not in _WRITING]


def _written(asked: Mapping[Fragment, Asked], write: r.Write, lsn: int, time_ms: int, record: str) -> None:
    one = asked.get(write.fragment)
    if one is None:
        return
    at = (lsn, time_ms, record, write.epoch)
    for counter in range(write.start + 1, write.start + 1 + write.closed):
        one.take(Trace(*at, counter, b"", None, write.tx, write.issued, closed=True))
    if not one.runs and one.keys.keys().isdisjoint(write.keys):
        return
    for counter, (key, value) in enumerate(zip(write.keys, write.values, strict=True), write.start + 1):
        if key in one.keys or one.runs:
            one.take(Trace(*at, counter, key, value, write.tx, write.issued))


def _closed(
    asked: Mapping[Fragment, Asked],
    partition: int,
    epoch: int,
    ranges: Iterable[r.Range],
    lsn: int,
    time_ms: int,
    record: str,
    tx: TxId,
) -> None:
    for namespace, start, delta in ranges:
        if (namespace, partition) in asked:
            write = r.Write(namespace, partition, epoch, start, keys=[], values=[], stable=0, tx=tx, closed=delta)
            _written(asked, write, lsn, time_ms, record)


def placed(finding: Finding, views: Mapping[NodeId, FragmentView]) -> Finding:
    """The finding, and where its record stands in the logs, if all these copies agree about that: who looks there needs
    nothing else of them."""
    epoch, counter = finding.right.get("epoch"), finding.right.get("counter")
    if finding.key is None or finding.history != AGREED or not isinstance(counter, int) or not views:
        return finding
    if any(not v.counter.covers(counter - 1, 1) or _issuer(v.epochs, counter) != epoch for v in views.values()):
        return finding
    evidence: dict[NodeId, Facts] = {node: {"silent_to": views[node].history_from} for node in sorted(views)}
    return msgspec.structs.replace(finding, sought=counter, evidence=evidence)


def _issuer(epochs: Sequence[tuple[int, int]], counter: int) -> int:
    """The epoch of a counter, by a table of epochs with the first counter of each."""
    return next((epoch for epoch, first in reversed(epochs) if first <= counter), 0)


def looked_up(findings: Sequence[Finding], logs: Mapping[NodeId, tuple[Path, int]]) -> list[Finding]:
    """Findings that are `placed`, with what the logs tell of them: of each node where its log is, and up to which LSN."""
    heard: dict[NodeId, dict[Fragment, Asked]] = {}
    for node, (wal, to_lsn) in logs.items():
        mine = heard[node] = {}
        for name, group in groupby((f for f in findings if node in f.evidence), key=lambda f: (f.namespace, f.partition)):
            sought = {raw_key(f.key): (f.sought, f.right["epoch"]) for f in group if f.key is not None}
            epochs = [(epoch, counter) for counter, epoch in sorted(sought.values()) if isinstance(epoch, int)]
            mine[name] = Asked(epochs, sought, (), {key: counter for key, (counter, _) in sought.items()})
        if mine:
            ask_log(wal, to_lsn, mine)
    return [_found_there(finding, heard) for finding in findings]


def _found_there(finding: Finding, heard: Mapping[NodeId, Mapping[Fragment, Asked]]) -> Finding:
    evidence, name, key = dict(finding.evidence), (finding.namespace, finding.partition), raw_key(finding.key or "")
    for node in evidence:
        trace = heard[node][name].newest.get(key)
        if trace is not None:
            evidence[node] = trace.facts()
    return msgspec.structs.replace(finding, evidence=evidence, sought=0)


def attributed(
    findings: Sequence[Finding],
    states: Sequence[S],
    maps: Mapping[NodeId, Maps],
    ask: Callable[[S, Mapping[Fragment, Asked]], None],
) -> list[Finding]:
    """The findings, each with what the logs tell of it, which are asked by `ask`."""
    about = [f for f in findings if f.namespace and (f.key is not None or f.kind in PARTED)]
    if not about:
        return list(findings)
    heard: dict[NodeId, dict[Fragment, Asked]] = {}
    for state in states:
        mine: dict[Fragment, Asked] = {}
        for name, group in groupby(about, key=lambda f: (f.namespace, f.partition)):
            view = state.fragments.get(name)
            if view is not None:
                found = list(group)
                runs = [(f.counters[0], f.counters[-1]) for f in found if f.kind in PARTED]
                mine[name] = Asked(
                    view.epochs, [raw_key(f.key) for f in found if f.key is not None], runs, _known(found, view)
                )
        if mine:
            ask(state, mine)
            heard[state.identity.node] = mine
    views = {s.identity.node: s.fragments for s in states}
    return [_told(f, heard, views, maps) for f in findings]


def _known(found: Iterable[Finding], view: FragmentView) -> dict[bytes, int]:
    """The counters of the newest updates of keys, where histories agree, a log says what is right, and this copy has it."""
    return {
        raw_key(f.key): counter
        for f in found
        if f.key is not None
        and f.history == AGREED
        and isinstance(counter := f.right.get("counter"), int)
        and view.counter.covers(counter - 1, 1)
    }


def _told(
    finding: Finding,
    heard: Mapping[NodeId, Mapping[Fragment, Asked]],
    views: Mapping[NodeId, Mapping[Fragment, FragmentView]],
    maps: Mapping[NodeId, Maps],
) -> Finding:
    name = (finding.namespace, finding.partition)
    asked = {node: of[name] for node, of in sorted(heard.items()) if name in of}
    if finding.kind in PARTED:
        return _where_they_part(finding, asked, maps)
    if finding.key is None or not asked:
        return finding
    evidence: dict[NodeId, Facts] = {}
    for node, one in asked.items():
        trace = one.newest.get(raw_key(finding.key))
        evidence[node] = trace.facts() if trace is not None else {"silent_to": views[node][name].history_from}
    return msgspec.structs.replace(finding, evidence=evidence)


def _where_they_part(finding: Finding, asked: Mapping[NodeId, Asked], maps: Mapping[NodeId, Maps]) -> Finding:
    """The first counter of which two logs tell different things, and what each of them tells."""
    odd = next((node for node in finding.on if node in asked), None)
    model = next((node for node in finding.copies if node in asked and node not in finding.on), None)
    if odd is None or model is None:
        return finding
    here, there = asked[odd].counters, asked[model].counters
    first, last = finding.counters[0], finding.counters[-1]
    at = next((c for c in range(first, last + 1) if c in here and c in there and not here[c].same(there[c])), None)
    if at is None or any(c not in here or c not in there for c in range(first, at)):
        return finding  # a log does not reach back so far, and an earlier counter may be the one
    evidence: dict[NodeId, Facts] = {}
    for node in finding.copies:
        trace = asked[node].counters.get(at) if node in asked else None
        if trace is not None:
            key: Facts = {} if trace.closed else {"key": printable(trace.key)}
            evidence[node] = trace.facts() | key | {"map": _map_before(maps.get(node, ()), trace.lsn)}
    detail = f"{finding.detail}; the records of counter {at} are the first that differ"
    return msgspec.structs.replace(finding, counters=[at, last], evidence=evidence, detail=detail)


def _map_before(maps: Maps, lsn: int) -> str:
    """The version of the map that this node had committed before a record; empty if its log does not tell."""
    return next((version for at, version in reversed(maps) if at <= lsn), "")
