"""The rows of all copies side by side: what differs between them, and, where they agree, from what the log says. Pure.

The log is asked about keys on which the copies agree: a wrong value that all of them have is found by nothing else. One
log is enough, the one that reaches furthest back: that all logs tell the same is for the digests to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.store import Entry
from tools.reconcile.copies import Compared, Copy, Rules
from tools.reconcile.findings import KINDS, Facts, Finding, Kind, entry_facts, printable
from tools.reconcile.votes import right_one
from wal.ids import Fragment, NodeId, partition_of

INTERNAL = "~"
"""Namespaces that begin so are the engine's own, which places their keys as it likes."""


def compare_rows(
    name: Fragment,
    copies: Sequence[Copy],
    reach: Mapping[NodeId, int],
    primary: NodeId | None,
    rules: Rules,
    compared: Compared,
) -> list[Finding]:
    """Everything that is wrong with rows: unknown parts that cannot be read, then keys, ascending."""
    return _Rows(name, copies, reach, primary, rules, compared).compare()


class _Rows:
    """Walks the rows of all copies. Copies that agree cost one comparison a row, and one question to the log."""

    def __init__(
        self,
        name: Fragment,
        copies: Sequence[Copy],
        reach: Mapping[NodeId, int],
        primary: NodeId | None,
        rules: Rules,
        compared: Compared,
    ) -> None:
        self._name = name
        self._copies = copies
        self._reach = [reach[c.node] for c in copies]
        self._level = [c for c in copies if reach[c.node] == compared.cut]
        self._primary = primary
        self._values = rules.values
        self._compared = compared
        self._found: list[tuple[bytes, Finding]] = []
        self._beside: dict[bytes, list[Entry | None]] = {}  # what the others have where one is damaged
        self._hashed_to = 0 if name[0].startswith(INTERNAL) else rules.partitions
        asked = [c for c in self._level if c.said is not None]
        self._witness = min(asked, key=lambda c: c.view.history_from, default=None)
        self._unseen: set[bytes] = set()  # keys that the witness tells of and no row was seen of
        if self._witness is not None and self._witness.said is not None:
            self._unseen = set(self._witness.said.said)

    def compare(self) -> list[Finding]:
        """The walk."""
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
                    self._unseen.discard(first[0])
                else:
                    if first[1].value is not None:
                        compared.keys += 1
                    self._agreed(*first)
                heads = [next(walk, None) for walk in walks]
                continue
            key = min(head[0] for head in heads if head is not None)
            held: list[Entry | None] = [None] * len(heads)
            for at, head in enumerate(heads):
                if head is not None and head[0] == key:
                    held[at] = head[1]
                    heads[at] = next(walks[at], None)
            self._judge(key, held)
        self._lost_everywhere()
        self._unreadable()
        return [finding for _, finding in sorted(self._found, key=_in_report_order)]

    # Keys that all copies have alike.

    def _agreed(self, key: bytes, entry: Entry | None) -> None:
        """All copies have this of a key: is it what the log says, and where it belongs?"""
        self._unseen.discard(key)
        if self._hashed_to and entry is not None and entry.value is not None:
            right = partition_of(key, self._hashed_to)
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
        facts = entry_facts(entry, self._values)
        self._add(key, kind, [c.node for c in self._level], {c.node: facts for c in self._level}, detail)

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
        if any(entry is not None and entry.counter > cut for _, entry in level):
            self._unseen.discard(key)
            compared.unsettled_keys += 1
            return
        known: list[tuple[NodeId, Entry | None]] = []
        for copy, entry in level:
            if self._sure(copy, key, entry, cut):
                known.append((copy.node, entry))
        live = [(node, _alive(entry)) for node, entry in known]
        if any(entry is not None for _, entry in live):
            compared.keys += 1
            if len(known) < len(level) and not any(key in c.damaged for c in self._copies):
                compared.unsettled_keys += 1
        right = right_one(live, self._primary) if live else None
        if len({entry for _, entry in live}) > 1:
            self._unseen.discard(key)
            self._differs(key, known, right)
        elif live:
            tombstone = next((entry for _, entry in known if entry is not None), None)
            self._agreed(key, right if right is not None else tombstone)
        self._held_against(key, behind, right, level)

    def _sure(self, copy: Copy, key: bytes, entry: Entry | None, reach: int) -> bool:
        """Whether what a copy has of a key tells what it had at its reach."""
        if key in copy.damaged:
            return False
        if entry is None:  # a newer tombstone may have been here, or the row itself in the part that cannot be read
            return copy.view.base <= reach and None not in copy.damaged
        return entry.counter <= reach

    def _held_against(
        self,
        key: bytes,
        behind: list[tuple[Copy, int, Entry | None]],
        right: Entry | None,
        level: list[tuple[Copy, Entry | None]],
    ) -> None:
        """Copies that do not reach the cut: what they have, if the others still have what was there then."""
        for copy, reach, entry in behind:
            if not self._sure(copy, key, entry, reach):
                continue
            if not all(self._sure(other, key, theirs, reach) for other, theirs in level):
                continue
            if _alive(entry) != right:
                known = sorted([(copy.node, entry), *((other.node, theirs) for other, theirs in level)])
                self._differs(key, known, right, only=copy.node)

    def _differs(self, key: bytes, known: list[tuple[NodeId, Entry | None]], right: Entry | None, only: str = "") -> None:
        deleted = right is None and any(entry is not None and entry.value is None for _, entry in known)
        odd: dict[Kind, list[NodeId]] = {}
        for node, entry in known:
            kind = _kind(right, entry, deleted=deleted)
            if kind is not None and only in ("", node):
                odd.setdefault(kind, []).append(node)
        if Kind.EXTRA_ON in odd and any(c.said is not None and c.said.deleted(key) for c in self._copies):
            odd[Kind.RESURRECTED] = odd.pop(Kind.EXTRA_ON)
        facts = {node: entry_facts(entry, self._values) for node, entry in known}
        facts |= {c.node: {"unreadable": True} for c in self._copies if key in c.damaged}
        for kind, nodes in odd.items():
            self._add(key, kind, nodes, {c.node: facts[c.node] for c in self._copies if c.node in facts})

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
