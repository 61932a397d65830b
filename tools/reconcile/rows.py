"""The rows of all copies side by side: what differs between them, and, where they agree, from what the log says. Pure.

The log is asked about every key: a wrong value that all copies have is found by nothing else, and where they differ it
knows better than most of them. One log is enough, the one that reaches furthest back: that all logs tell the same is for
the digests to say, and up to where they say so (`agreed`) what the log tells is proof.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from engine.offline.rows import Alike
from engine.state.store import Entry, Row
from rebalance.contents import row_digest
from tools.reconcile.copies import Compared, Copy, Rules
from tools.reconcile.findings import AGREED, KINDS, PARTED, Facts, Finding, Kind, Proof, entry_facts
from tools.reconcile.votes import proof_of, right_one
from tools.shown import printable
from tools.wal.rows import DELETED, NOTHING, Said
from wal.ids import Fragment, NodeId, partition_of, strays_of

Run: TypeAlias = Alike | Sequence[Sequence[Row]]
"""Rows that all copies have in the same bytes, or what each of them has of a range of keys."""

INTERNAL = "~"
"""Namespaces that begin so are the engine's own, which places their keys as it likes."""


def compare_rows(
    name: Fragment,
    copies: Sequence[Copy],
    reach: Mapping[NodeId, int],
    primary: NodeId | None,
    rules: Rules,
    compared: Compared,
    runs: Iterable[Run],
    agreed: int,
    only: Sequence[bytes] | None = None,
) -> list[Finding]:
    """Everything that is wrong with rows: unknown parts that cannot be read, then keys, ascending.

    `runs` are those of the copies, in their order. `agreed`: up to which counter their histories are known to be the
    same, -1 where they part. `only`: the runs are of these keys, and of others nothing is said.
    """
    walk = _Rows(name, copies, reach, primary, rules=rules, compared=compared, agreed=agreed)
    if only is not None:
        walk.only(only)
    return walk.compare(runs)


def witness_of(copies: Sequence[Copy]) -> Copy | None:
    """The copy whose log is asked, of those whose logs may be."""
    return min((c for c in copies if c.said is not None), key=lambda c: c.view.history_from, default=None)


class _Judgement(NamedTuple):
    """Why copies are wrong about a key; `said` is what the log says of it, if that is the proof."""

    proof: Proof
    said: Said | None = None
    history: str = ""


class _Rows:
    """Walks the rows of all copies. What has the same bytes on all of them is judged by the run, the rest by the key."""

    def __init__(
        self,
        name: Fragment,
        copies: Sequence[Copy],
        reach: Mapping[NodeId, int],
        primary: NodeId | None,
        rules: Rules,
        compared: Compared,
        agreed: int,
    ) -> None:
        self._agreed_to = agreed
        self._name = name
        self._copies = copies
        self._reach = [reach[c.node] for c in copies]
        self._level = [c for c in copies if reach[c.node] == compared.cut]
        self._primary = primary
        self._primary_here = next((c.node for c in copies if c.node == primary), "")
        self._values = rules.values
        self._again = rules.again
        self._compared = compared
        self._found: list[tuple[bytes, Finding]] = []
        self._beside: dict[bytes, list[Entry | None]] = {}  # what the others have where one is damaged
        moving = any(rules.under_way(c.node, c.view.touched_ms) for c in copies)
        self._issued_to = sys.maxsize if moving else max(c.view.counter.highest_applied for c in copies)
        self._suspects = {key for c in copies for key in c.view.suspects}
        self._hashed_to = 0 if name[0].startswith(INTERNAL) else rules.partitions
        self._first = rules.firsts.get(name[0], 0)
        self._astray = bool(self._hashed_to) and not 0 <= name[1] - self._first < self._hashed_to  # of another group
        self._witness = witness_of(self._level)
        self._unseen: set[bytes] = set()  # keys that the witness tells of and no row was seen of
        if self._witness is not None and self._witness.said is not None:
            self._unseen = set(self._witness.said.said)

    def only(self, keys: Sequence[bytes]) -> None:
        """Of other keys than these nothing is said."""
        self._unseen.intersection_update(keys)

    def compare(self, runs: Iterable[Run]) -> list[Finding]:
        """The walk."""
        for run in runs:
            if isinstance(run, Alike):
                self._alike(run)
            else:
                self._beside_each_other(run)
        self._lost_everywhere()
        for key in dict.fromkeys(key for c in self._copies for key in c.damaged):
            if key is not None and key not in self._beside:
                self._judge(key, [None] * len(self._copies))
        self._unreadable()
        return [finding for _, finding in sorted(self._found, key=_in_report_order)]

    def _alike(self, run: Alike) -> None:
        """All copies have these bytes: are they what the log says, and where they belong?"""
        if max(run.counters) > self._compared.cut:
            for at, key in enumerate(run.keys):
                self._one(key, run.entry(at))
            return
        self._compared.keys += len(run.digests) - run.digests.count(DELETED)
        self._unseen.difference_update(run.keys)
        doubtful: list[int] = []
        if self._astray:
            doubtful += range(len(run.keys))
        elif self._hashed_to:
            doubtful += strays_of(run.keys, self._name[1] - self._first, self._hashed_to)
        witness = self._witness
        if witness is not None and witness.said is not None:
            begins, told = witness.view.history_from, [*map(witness.said.said.get, run.keys)]
            if None in told or [said.value for said in told if said is not None] != run.digests:
                doubtful += [
                    at
                    for at, (said, digest, counter) in enumerate(zip(told, run.digests, run.counters, strict=True))
                    if (said.value != digest if said is not None else counter > begins)
                ]
        for at in sorted(dict.fromkeys(doubtful)):
            self._agreed(run.keys[at], run.entry(at))

    def _one(self, key: bytes, entry: Entry) -> None:
        """All copies have this row."""
        if entry.counter > self._compared.cut and self._issued(key, entry):
            self._on_its_way(key, [(copy, entry) for copy in self._level])
            return
        if entry.value is not None:
            self._compared.keys += 1
        self._agreed(key, entry)

    def _beside_each_other(self, rows: Sequence[Sequence[Row]]) -> None:
        walks = [iter(found) for found in rows]
        heads = [next(walk, None) for walk in walks]
        while True:
            first = heads[0]
            if heads.count(first) == len(heads):
                if first is None:
                    return
                self._one(*first)
                heads = [next(walk, None) for walk in walks]
                continue
            key = min(head[0] for head in heads if head is not None)
            held: list[Entry | None] = [None] * len(heads)
            for at, head in enumerate(heads):
                if head is not None and head[0] == key:
                    held[at] = head[1]
                    heads[at] = next(walks[at], None)
            self._judge(key, held)

    # Keys that all copies have alike.

    def _agreed(self, key: bytes, entry: Entry | None) -> None:
        """All copies have this of a key: is it what the log says, and where it belongs?"""
        self._unseen.discard(key)
        if self._hashed_to and entry is not None and entry.value is not None:
            right = partition_of(key, self._hashed_to) + self._first
            if right != self._name[1]:
                self._told(key, entry, Kind.MISPLACED, f"its key hashes to partition {right}")
        witness = self._witness
        if witness is not None and witness.said is not None:
            why = witness.said.judge(key, entry, witness.view.history_from)
            if why:
                self._told(key, entry, Kind.STORE_DIFFERS_FROM_LOG, f"{witness.node}: {why}")

    def _lost_everywhere(self) -> None:
        """Keys of which the log tells, and no copy has a row."""
        witness = self._witness
        if witness is None or witness.said is None or any(None in c.damaged for c in self._copies):
            return
        damaged = {key for c in self._copies for key in c.damaged}
        for key in sorted(self._unseen - damaged):
            if witness.said.said[key].counter <= self._compared.cut:
                self._agreed(key, None)

    def _told(self, key: bytes, entry: Entry | None, kind: Kind, detail: str) -> None:
        has = entry_facts(entry, self._values)
        on = [c.node for c in self._level if key not in c.damaged]
        copies: dict[NodeId, Facts] = {c.node: has if c.node in on else {"unreadable": True} for c in self._level}
        judgement = self._judgement(key, [entry])
        if kind is Kind.MISPLACED:
            judgement = _Judgement(Proof.NONE, None, judgement.history)
        self._add(key, kind, on, copies, detail=detail, judgement=judgement)

    # Keys on which they differ.

    def _judge(self, key: bytes, held: list[Entry | None]) -> None:
        """The copies do not have the same of a key."""
        compared, cut = self._compared, self._compared.cut
        if any(key in c.damaged for c in self._copies):
            self._beside[key] = held
        level: list[tuple[Copy, Entry | None]] = []
        behind: list[tuple[Copy, int, Entry | None]] = []
        for copy, reach, entry in zip(self._copies, self._reach, held, strict=True):
            if reach == cut:
                level.append((copy, entry))
            else:
                behind.append((copy, reach, entry))
        if any(entry is not None and entry.counter > cut and self._issued(key, entry) for _, entry in level):
            self._on_its_way(key, level)
            return
        known: list[tuple[NodeId, Entry | None]] = []
        late = False
        for copy, entry in level:
            if self._sure(copy, key, entry, cut):
                known.append((copy.node, entry))
            else:
                late = late or None not in copy.damaged
        live = [(node, _alive(entry)) for node, entry in known]
        differ = len({entry for _, entry in live}) > 1
        doubtful = len(known) < len(level) and not any(key in c.damaged for c in self._copies)
        if any(entry is not None for _, entry in live):
            compared.keys += not doubtful
            compared.unsettled_keys += doubtful
            if doubtful and not differ:
                compared.unsettled.append(key)
        right = right_one(live, self._primary) if live else None
        judgement = self._judgement(key, [entry for _, entry in known])
        if judgement.said is None and live:
            judgement = judgement._replace(proof=proof_of(live, right))
        elif judgement.said is not None:
            right = self._as_said(key, judgement.said, [entry for _, entry in live])
        if differ and doubtful and late and self._again and judgement.proof is Proof.NONE:
            self._unseen.discard(key)
            compared.unsettled.append(key)  # a copy that was read too late to tell can tell the next time
            return
        if differ:
            self._unseen.discard(key)
            self._differs(key, known, right, judgement)
        elif live:
            _, has = live[0]
            tombstone = next((entry for _, entry in known if entry is not None), None)
            self._agreed(key, has if has is not None else tombstone)
        self._held_against(key, behind, right, level, judgement)

    def _on_its_way(self, key: bytes, level: Sequence[tuple[Copy, Entry | None]]) -> None:
        """A copy has something newer than the cut. A log that tells of all that came later says what each copy must have
        at its own counter; where one has anything else, or the log does not reach, nobody can tell yet."""
        self._unseen.discard(key)
        witness = self._witness
        if witness is not None and witness.said is not None and self._agreed_to >= 0:
            said = witness.said
            for copy, entry in level:
                expected = said.at(key, _applied_by(copy), witness.view.history_from)
                if key in copy.damaged or expected is None or row_digest(key, entry) != expected.value:
                    break
            else:
                self._compared.keys += any(_alive(entry) is not None for _, entry in level)
                return
        self._compared.unsettled_keys += 1
        self._compared.unsettled.append(key)

    def _issued(self, key: bytes, entry: Entry) -> bool:
        """Whether some copy has applied the counter of a row, or may have: else it is nothing that is on its way."""
        return entry.counter <= self._issued_to or key in self._suspects

    def _as_said(self, key: bytes, said: Said, live: Sequence[Entry | None]) -> Entry | None:
        """The entry that the log says; where no copy has it, its version, with a value that nobody has."""
        if said.value == DELETED:
            return None
        found = next((e for e in live if e is not None and row_digest(key, e) == said.value), None)
        return found if found is not None else Entry(said.epoch, said.counter, b"")

    def _judgement(self, key: bytes, held: Sequence[Entry | None]) -> _Judgement:
        """What the log says of a key, if it tells each of these apart from it, and the copies agree on their history."""
        witness, agreed = self._witness, self._agreed_to
        said = witness.said.said.get(key, NOTHING) if witness is not None and witness.said is not None else NOTHING
        top = max(said.counter, *(entry.counter for entry in held if entry is not None and self._issued(key, entry)), 0)
        history = PARTED if agreed < 0 else AGREED if top <= agreed else ""
        if witness is None or witness.said is None or history != AGREED:
            return _Judgement(Proof.NONE, None, history)
        sure = [witness.said.sure(key, entry, witness.view.history_from) for entry in held]
        return _Judgement(Proof.NONE if None in sure else Proof.LOG, None if None in sure else said, history)

    def _sure(self, copy: Copy, key: bytes, entry: Entry | None, reach: int) -> bool:
        """Whether what a copy has of a key tells what it had at its reach."""
        if key in copy.damaged:
            return False
        if entry is None:  # a newer tombstone may have been here, or the row itself in the part that cannot be read
            return copy.view.stable <= reach and None not in copy.damaged
        return entry.counter <= reach or not self._issued(key, entry)

    def _held_against(
        self,
        key: bytes,
        behind: list[tuple[Copy, int, Entry | None]],
        right: Entry | None,
        level: list[tuple[Copy, Entry | None]],
        judgement: _Judgement,
    ) -> None:
        """Copies that do not reach the cut: what they have, if the others still have what was there then."""
        for copy, reach, entry in behind:
            if not self._sure(copy, key, entry, reach):
                continue
            if not all(self._sure(other, key, theirs, reach) for other, theirs in level):
                continue
            if _alive(entry) != right:
                known = sorted([(copy.node, entry), *((other.node, theirs) for other, theirs in level)])
                self._differs(key, known, right, judgement, only=copy.node)

    def _differs(
        self,
        key: bytes,
        known: list[tuple[NodeId, Entry | None]],
        right: Entry | None,
        judgement: _Judgement,
        only: str = "",
    ) -> None:
        deleted = right is None and any(entry is not None and entry.value is None for _, entry in known)
        said = judgement.said
        odd: dict[Kind, list[NodeId]] = {}
        for node, entry in known:
            kind = _kind(right, entry, deleted=deleted)
            if kind is None and said is not None and said.value != DELETED and row_digest(key, entry) != said.value:
                kind = Kind.VALUE_MISMATCH  # its value is the very one that stands for the value that nobody has
            if kind is not None and only in ("", node):
                odd.setdefault(kind, []).append(node)
        if Kind.EXTRA_ON in odd and any(c.said is not None and c.said.deleted(key) for c in self._level):
            odd[Kind.RESURRECTED] = odd.pop(Kind.EXTRA_ON)
        facts = {node: entry_facts(entry, self._values) for node, entry in known}
        facts |= {c.node: {"unreadable": True} for c in self._copies if key in c.damaged}
        for kind, nodes in odd.items():
            shown = {c.node: facts[c.node] for c in self._copies if c.node in facts}
            self._add(key, kind, nodes, shown, judgement=judgement, holders=_holders(key, known, said))

    # What cannot be read.

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
            shown = facts if key in self._beside or len(on) == len(self._copies) else {}
            whole = [(copy.node, entry) for copy, entry in zip(self._copies, held, strict=True) if copy not in on]
            judgement = self._judgement(key, [entry for _, entry in whole] or [None])._replace(proof=Proof.CHECKSUM)
            holders = _holders(key, whole, judgement.said)
            nodes = [c.node for c in on]
            self._add(key, Kind.UNREADABLE, nodes, shown, detail=on[0].damaged[key], judgement=judgement, holders=holders)

    def _add(
        self,
        key: bytes,
        kind: Kind,
        on: list[NodeId],
        copies: dict[NodeId, Facts],
        detail: str = "",
        judgement: _Judgement | None = None,
        *,
        part: bool = False,
        holders: Sequence[NodeId] = (),
    ) -> None:
        finding = Finding(
            kind,
            self._name[1],
            self._name[0],
            None if part else printable(key),
            on,
            copies=copies,
            detail=detail,
            proof=Proof.CHECKSUM if judgement is None else judgement.proof,
            right=_said_facts(judgement.said) if judgement is not None and judgement.said is not None else {},
            history=judgement.history if judgement is not None else "",
            primary=self._primary_here if not part else "",
            holders=list(holders),
        )
        self._found.append((key, finding))


def _holders(key: bytes, known: Sequence[tuple[NodeId, Entry | None]], said: Said | None) -> list[NodeId]:
    """The copies that have the row that the log says."""
    if said is None or said.value == DELETED:
        return []
    return [node for node, entry in known if row_digest(key, entry) == said.value]


def _said_facts(said: Said) -> Facts:
    """What the log says: `epoch=2 counter=57` and the row's digest, `absent`, or a delete."""
    if said is NOTHING:
        return {"absent": True}
    version: Facts = {"epoch": said.epoch, "counter": said.counter}
    return {"tombstone": True} | version if said.value == DELETED else version | {"share": f"{said.value:016x}"}


def _applied_by(copy: Copy) -> Callable[[int], bool]:
    """Whether a copy has applied a counter."""
    counter = copy.view.counter
    return lambda at: at <= counter.lwm or any(start < at <= start + delta for start, delta in counter.ranges)


def _alive(entry: Entry | None) -> Entry | None:
    """An entry that is a value; a tombstone equals absence."""
    return entry if entry is not None and entry.value is not None else None


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
