"""The judgement: given what every in-sync copy of one fragment has, what differs. Pure: values in, values out.

```
 counters   1 ........ cut ........ lwm of the copy that is ahead
            compared  |  unsettled: on its way, or written while the directories were read
```

The **cut** of a fragment is the lowest LWM over its copies: up to there every copy claims to have everything. A key whose
newest entry lies above it on any copy cannot be compared, because what the others had at the cut is gone: it is counted
as unsettled. So directories of a live cluster, read one after another, give no false alarm. Three rules make that sound:

* A copy that has not yet taken part in the newest epoch may have to undo what lies beyond that epoch's first counter.
  Up to its `base` it cannot undo: what differs there is a fork.
* A tombstone at or below the cut equals absence. A copy whose `base` is above the cut may have dropped a newer tombstone
  already, so there the absence of a key says nothing.
* A gap, or a prepared transaction, is a finding only if nothing was heard of it for a while (`Rules.under_way`), as the
  logs themselves tell the time.

Who is right? The version that most copies have; among equals, the primary's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from engine.offline import Claim, FragmentView, PartitionView
from engine.store import Entry, Row
from tools.reconcile.findings import KINDS, Facts, Finding, Kind, Values, entry_facts, printable
from wal.ids import Fragment, NodeId, Version, tx_name

H = TypeVar("H", bound=Hashable)


class Rules(msgspec.Struct, frozen=True):
    """What a comparison goes by. `horizon_ms` is the newest block of all logs, 0 if none says anything since its
    checkpoint: then nothing is under way any more."""

    horizon_ms: int = 0
    grace_ms: int = 0
    values: Values = Values.HASH

    def under_way(self, touched_ms: int) -> bool:
        """Whether what was touched then, at the latest (0: nobody knows when), may still be going on."""
        return bool(self.horizon_ms) and (touched_ms or self.horizon_ms) > self.horizon_ms - self.grace_ms


class Copy(NamedTuple):
    """One node's copy of one fragment.

    `rows` ascend by key. `damaged` fills while they are read: a key, or None for an unknown part, and what is wrong.
    `version` is the topology that the node knew.
    """

    node: NodeId
    version: Version
    partition: PartitionView
    view: FragmentView
    rows: Iterable[Row]
    damaged: dict[bytes | None, str]

    @property
    def epoch(self) -> int:
        """The newest epoch that it has taken part in."""
        return max(self.partition.epoch, *(epoch for epoch, _ in self.view.epochs[-1:]), 0)


class Compared(msgspec.Struct):
    """What came of one fragment: findings in order, and what was looked at."""

    findings: list[Finding] = []
    keys: int = 0
    unsettled_keys: int = 0
    unsettled_gaps: int = 0
    cut: int = 0


def compare(name: Fragment, copies: Sequence[Copy], primary: NodeId | None, rules: Rules) -> Compared:
    """Compare the in-sync copies of a fragment; `copies` are in the order of their nodes' names, one at least."""
    assert copies, "a fragment that nobody has is not compared"
    compared = Compared(cut=cut_of(copies))
    forked = list(_forks(name, copies, primary, compared.cut))
    compared.findings += forked
    whole = [c for c in copies if not any(c.node in f.on for f in forked)]
    compared.findings += _digests(name, whole, primary, compared.cut)
    compared.findings += _gaps(name, copies, rules, compared)
    rows = _Rows(name, copies, primary, rules, compared)
    compared.findings += rows.compare()
    return compared


def cut_of(copies: Sequence[Copy]) -> int:
    """The highest counter up to which every copy claims to have everything, and none may have to undo anything."""
    newest = max(c.epoch for c in copies)
    cut = min(c.view.counter.lwm for c in copies)
    for copy in copies:
        if copy.epoch < newest:
            later = [first for c in copies for epoch, first in c.view.epochs if epoch > copy.epoch]
            if later:
                cut = min(cut, max(copy.view.base, min(later) - 1))
    return cut


def right_one(found: Sequence[tuple[NodeId, H]], primary: NodeId | None) -> H:
    """What most have; among equals the primary's, else that of the first node by name."""
    votes: dict[H, list[NodeId]] = {}
    for node, what in found:
        votes.setdefault(what, []).append(node)
    return max(votes, key=lambda what: (len(votes[what]), primary in votes[what], what == found[0][1]))


# Histories.


def _forks(name: Fragment, copies: Sequence[Copy], primary: NodeId | None, cut: int) -> Iterator[Finding]:
    tables = [(c.node, _table(c.view.epochs, cut)) for c in copies]
    right = right_one(tables, primary)
    for other in dict.fromkeys(table for _, table in tables if table != right):
        counter = min(first for _, first in set(right) ^ set(other))
        here, there = _epoch_at(other, counter), _epoch_at(right, counter)
        yield Finding(
            Kind.EPOCH_FORK,
            name[1],
            name[0],
            on=[node for node, table in tables if table == other],
            counters=[counter, cut],
            copies={node: {"epochs": [list(run) for run in table]} for node, table in tables},
            detail=f"histories part at counter {counter}: epoch {here} issued it here, epoch {there} elsewhere",
        )


def _table(epochs: Sequence[tuple[int, int]], cut: int) -> tuple[tuple[int, int], ...]:
    """The runs up to the cut; where two begin at the same counter, the older one issued nothing."""
    return tuple((epoch, first) for first, epoch in {first: epoch for epoch, first in epochs if first <= cut}.items())


def _epoch_at(table: Sequence[tuple[int, int]], counter: int) -> int:
    return next((epoch for epoch, first in reversed(table) if first <= counter), 0)


def _digests(name: Fragment, copies: Sequence[Copy], primary: NodeId | None, cut: int) -> Iterator[Finding]:
    if len(copies) < 2:
        return
    known = set.intersection(*(set(c.view.digests) for c in copies))
    common = sorted(counter for counter in known if counter <= cut)
    if not common:
        return
    last = common[-1]
    found = [(c.node, c.view.digests[last]) for c in copies]
    right = right_one(found, primary)
    model = next(c for c in copies if c.view.digests[last] == right)
    for other in dict.fromkeys(digest for _, digest in found if digest != right):
        on = [node for node, digest in found if digest == other]
        odd = next(c for c in copies if c.node in on)
        agreed = max((c for c in common if odd.view.digests[c] == model.view.digests[c]), default=0)
        parted = next(c for c in common if odd.view.digests[c] != model.view.digests[c])
        yield Finding(
            Kind.DIGEST_MISMATCH,
            name[1],
            name[0],
            on=on,
            counters=[agreed + 1, parted],
            copies={node: {"counter": last, "digest": f"{digest:016x}"} for node, digest in found},
            detail=f"equal up to counter {agreed}, different at {parted}",
        )


# Gaps.


def _gaps(name: Fragment, copies: Sequence[Copy], rules: Rules, compared: Compared) -> Iterator[Finding]:
    """Counters that a copy lacks below one that it has, or below what every in-sync copy was said to have."""
    promised = max(c.view.base for c in copies)
    if len({c.version for c in copies}) > 1:
        promised = 0  # a copy that was in sync for one node is not yet for another
    moving = any(rules.under_way(c.view.touched_ms) for c in copies)
    found: dict[tuple[int, int, bytes], list[NodeId]] = {}
    why: dict[tuple[int, int, bytes], str] = {}
    for copy in copies:
        up_to = max(promised, copy.view.counter.highest_applied)
        for start, delta in copy.view.counter.missing(up_to):
            own = _claims(name, copy.partition)
            others = [x for c in copies if c is not copy for x in (*_claims(name, c.partition), *c.view.tail)]
            for piece in _owned(start, start + delta, [*own, *others]):
                prepared = copy.partition.prepared.get(piece.tx)
                under_way = rules.under_way(prepared.since_ms) if prepared is not None else moving
                if under_way:
                    compared.unsettled_gaps += 1
                    continue
                gap = (piece.start, piece.delta, piece.tx)
                found.setdefault(gap, []).append(copy.node)
                why[gap] = _why(piece, copy, copies)
    counters = {c.node: _counter_facts(c) for c in copies} if found else {}
    for (start, delta, tx), on in sorted(found.items()):
        yield Finding(
            Kind.COUNTER_GAP,
            name[1],
            name[0],
            on=on,
            counters=[start + 1, start + delta],
            tx=tx_name(tx) if tx else "",
            copies=counters,
            detail=why[start, delta, tx],
        )


def _why(piece: Claim, copy: Copy, copies: Sequence[Copy]) -> str:
    if piece.tx in copy.partition.prepared:
        return "a prepared transaction without an outcome holds these counters"
    have = [c.node for c in copies if c.view.counter.covers(piece.start, piece.delta)]
    if have:
        return f"{','.join(have)} applied what is missing here"
    return "no copy has these counters, and no prepared transaction holds them"


def _claims(name: Fragment, partition: PartitionView) -> list[Claim]:
    """The counters of a fragment that prepared transactions hold."""
    return [
        Claim(write.start, write.delta, tx)
        for tx, prepared in partition.prepared.items()
        for write in prepared.record.writes
        if write.fragment == name
    ]


def _owned(start: int, end: int, claims: Iterable[Claim]) -> Iterator[Claim]:
    """The gap in pieces, each with the transaction that it belongs to, where one is known; earlier claims go first."""
    owners = {(c.start, c.delta): c.tx for c in reversed(list(claims)) if start <= c.start and c.start + c.delta <= end}
    at = start
    for (first, delta), tx in sorted(owners.items()):
        if first < at:
            continue
        if first > at:
            yield Claim(at, first - at, b"")
        yield Claim(first, delta, tx)
        at = first + delta
    if at < end:
        yield Claim(at, end - at, b"")


def _counter_facts(copy: Copy) -> Facts:
    counter = copy.view.counter
    facts: Facts = {"lwm": counter.lwm, "hwm": counter.hwm}
    if counter.ranges:
        facts["ranges"] = [list(pair) for pair in counter.ranges]
    return facts


# Rows.


class _Rows:
    """Walks the rows of all copies side by side. Copies that agree cost one comparison a row."""

    def __init__(
        self, name: Fragment, copies: Sequence[Copy], primary: NodeId | None, rules: Rules, compared: Compared
    ) -> None:
        self._name = name
        self._copies = copies
        self._primary = primary
        self._values = rules.values
        self._compared = compared
        self._found: list[tuple[bytes, Finding]] = []
        self._beside: dict[bytes, list[Entry | None]] = {}  # what the others have where one is damaged

    def compare(self) -> list[Finding]:
        """Everything that is wrong with rows: unknown parts that cannot be read, then keys, ascending."""
        compared, cut = self._compared, self._compared.cut
        walks = [iter(c.rows) for c in self._copies]
        heads = [next(walk, None) for walk in walks]
        while True:
            first = heads[0]
            if heads.count(first) == len(heads):
                if first is None:
                    break
                if first[1].counter > cut:
                    compared.unsettled_keys += 1
                elif first[1].value is not None:
                    compared.keys += 1
                heads = [next(walk, None) for walk in walks]
                continue
            key = min(head[0] for head in heads if head is not None)
            held: list[Entry | None] = [None] * len(heads)
            for at, head in enumerate(heads):
                if head is not None and head[0] == key:
                    held[at] = head[1]
                    heads[at] = next(walks[at], None)
            self._judge(key, held)
        self._unreadable()
        return [finding for _, finding in sorted(self._found, key=_in_report_order)]

    def _judge(self, key: bytes, held: list[Entry | None]) -> None:
        """The copies do not have the same of a key."""
        compared, cut = self._compared, self._compared.cut
        if any(key in c.damaged for c in self._copies):
            self._beside[key] = held
        if any(entry is not None and entry.counter > cut for entry in held):
            compared.unsettled_keys += 1
            return
        known: list[tuple[NodeId, Entry | None]] = []
        for copy, entry in zip(self._copies, held, strict=True):
            if key in copy.damaged:
                continue
            if entry is None and (copy.view.base > cut or None in copy.damaged):
                continue  # a newer tombstone may have been here, or the row itself in the part that cannot be read
            known.append((copy.node, entry))
        live = [(node, entry if entry is not None and entry.value is not None else None) for node, entry in known]
        if any(entry is not None for _, entry in live):
            compared.keys += 1
            if len(known) < len(held) and not any(key in c.damaged for c in self._copies):
                compared.unsettled_keys += 1
        if len({entry for _, entry in live}) > 1:
            self._differs(key, known, right_one(live, self._primary))

    def _differs(self, key: bytes, known: list[tuple[NodeId, Entry | None]], right: Entry | None) -> None:
        deleted = right is None and any(entry is not None and entry.value is None for _, entry in known)
        odd: dict[Kind, list[NodeId]] = {}
        for node, entry in known:
            kind = _kind(right, entry, deleted=deleted)
            if kind is not None:
                odd.setdefault(kind, []).append(node)
        facts = {node: entry_facts(entry, self._values) for node, entry in known}
        facts |= {c.node: {"unreadable": True} for c in self._copies if key in c.damaged}
        for kind, nodes in odd.items():
            self._add(key, kind, nodes, {c.node: facts[c.node] for c in self._copies if c.node in facts})

    def _unreadable(self) -> None:
        for key in dict.fromkeys(key for c in self._copies for key in c.damaged):
            on = [c for c in self._copies if key in c.damaged]
            if key is None:
                for copy in on:
                    self._add(b"", Kind.UNREADABLE, [copy.node], {}, copy.damaged[None], part=True)
                continue
            held = self._beside.get(key, [None] * len(self._copies))
            facts: dict[NodeId, Facts] = {}
            for copy, entry in zip(self._copies, held, strict=True):
                facts[copy.node] = {"unreadable": True} if copy in on else entry_facts(entry, self._values)
            self._add(key, Kind.UNREADABLE, [c.node for c in on], facts if key in self._beside else {}, on[0].damaged[key])

    def _add(
        self,
        key: bytes,
        kind: Kind,
        on: list[NodeId],
        copies: dict[NodeId, Facts],
        detail: str = "",
        *,
        part: bool = False,
    ) -> None:
        named = None if part else printable(key)
        finding = Finding(kind, self._name[1], self._name[0], named, on, copies=copies, detail=detail)
        self._found.append((key, finding))


def _kind(right: Entry | None, entry: Entry | None, *, deleted: bool) -> Kind | None:
    """What is wrong with `entry` if `right` (live, or None) is right; None if nothing is."""
    if entry is None or entry.value is None:
        if right is None:
            return None
        return Kind.MISSING_ON if entry is None else Kind.TOMBSTONE_MISMATCH
    if right is None:
        return Kind.TOMBSTONE_MISMATCH if deleted else Kind.EXTRA_ON
    if (entry.epoch, entry.counter) != (right.epoch, right.counter):
        return Kind.VERSION_MISMATCH
    return Kind.VALUE_MISMATCH if entry.value != right.value else None


def _in_report_order(found: tuple[bytes, Finding]) -> tuple[bool, bytes, int, list[NodeId]]:
    key, finding = found
    return finding.key is not None, key, KINDS.index(finding.kind), finding.on
