"""The story of one key, out of the logs of any number of nodes: what was written, when, by whom, and where it is.

A change is one (epoch, counter) of the key's fragment, and the same on every node; what differs is how a node came by it
and for how long it stood there. So each node's log is folded by itself (`Reading`), by the rules of
`engine.state.replica`: a prepare stands when its outcome commits it, an epoch that begins below it, an undoing and a
clearing end it, and it may come back by re-issue, history or transfer. What a log does not reach back to is what its
store had.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from tools.shown import value_hash
from tools.wal.copy_at_rest import AtRest
from tools.wal.key_blocks import KeyBlocks
from tools.wal.maps import Maps
from tools.wal.origins import Origins
from wal import Block
from wal import records as r
from wal.ids import DECISIONS, NO_VERSION, Fragment, NodeId, TxId, Version, whole_of

if TYPE_CHECKING:
    from rebalance.table import Topology

How: TypeAlias = Literal["live", "history", "full", "reissued", "store"]


class Seen(msgspec.Struct):
    """A change on one node: in which record it came, how, and from when to when it stood (0: not at all, or still)."""

    node: NodeId
    lsn: int
    time_ms: int
    how: How
    epoch: int
    since_lsn: int = 0
    since_ms: int = 0
    until_lsn: int = 0
    until_ms: int = 0
    rolled_back: bool = False


class Change(msgspec.Struct):
    """One update of the key. `prepared`: it waited for an outcome, of a transaction that is decided in `decision`."""

    epoch: int
    counter: int
    deleted: bool
    size: int
    hash: str
    tx: TxId
    value: bytes | None = None
    prepared: bool = False
    decision: int = 0
    seen: list[Seen] = []

    @property
    def name(self) -> str:
        """`epoch.counter`."""
        return f"{self.epoch}.{self.counter}"

    @property
    def time_ms(self) -> int:
        """When it was first logged."""
        return min(one.time_ms for one in self.seen)


class Event(msgspec.Struct, frozen=True):
    """Something that happened to the copy of one node, and so to the key."""

    node: NodeId
    lsn: int
    time_ms: int
    what: str


class Verdict(msgspec.Struct, frozen=True):
    """Who has what. `stands`: node -> the change that stands there, or None. `parts_at` is the first that not all have.

    `behind` have something else, too, and may: the newest map, `version`, does not call their copies in sync.
    """

    stands: dict[NodeId, Change | None]
    last: Change | None
    differ: list[NodeId]
    parts_at: Change | None = None
    lacking: list[NodeId] = []
    behind: list[NodeId] = []
    version: Version = NO_VERSION


class Story:
    """One key's story. `keep`: values are kept, to be shown."""

    def __init__(self, fragment: Fragment, key: bytes, *, keep: bool) -> None:
        self.fragment = fragment
        self.key = key
        self.origins = Origins()
        self.decided: dict[TxId, tuple[int, int]] = {}  # where and in which epoch a decision was written
        self.events: list[Event] = []
        self.readings: dict[NodeId, Reading] = {}
        self._keep = keep
        self._changes: dict[tuple[int, int, bool, str], Change] = {}

    def reading(self, node: NodeId, rest: AtRest, *, apart: bool = False) -> Reading:
        """Begin to read a node's log; `apart`: who chooses blocks does not know what was taken of those before."""
        found = self.readings[node] = Reading(self, node, rest, apart=apart)
        return found

    def change(self, epoch: int, counter: int, value: bytes | None, tx: TxId) -> Change:
        """The change of this identity and this value: there is one, unless copies differ."""
        told = "" if value is None else value_hash(value)
        name = (epoch, counter, value is None, told)
        found = self._changes.get(name)
        if found is None:
            size = 0 if value is None else len(value)
            kept = value if self._keep else None
            found = self._changes[name] = Change(epoch, counter, value is None, size, hash=told, tx=tx, value=kept)
        found.tx = found.tx or tx
        return found

    def put_together(self) -> None:
        """All logs are read: a row of a transfer, which names the epoch that applied it, is the change that it is."""
        for name, change in list(self._changes.items()):
            if all(seen.how in {"full", "store"} for seen in change.seen):
                same = [other for other in self._changes.values() if other is not change and _same(change, other)]
                if same:
                    same[0].seen += change.seen
                    del self._changes[name]
                    for reading in self.readings.values():
                        reading.rename(change, same[0])

    @property
    def changes(self) -> list[Change]:
        """All changes, the oldest first."""
        return sorted(self._changes.values(), key=lambda change: (change.epoch, change.counter, change.time_ms))

    def rows(self) -> Iterator[Change | Event]:
        """Changes and events together, in the order of time as far as clocks tell, changes always in their own order."""
        events = sorted(self.events, key=lambda event: event.time_ms)
        for change in self.changes:
            while events and events[0].time_ms < change.time_ms:
                yield events.pop(0)
            yield change
        yield from events

    def origin(self, change: Change) -> r.Origin | None:
        """Where a change comes from: what was said of its transaction and its session, and who was primary then."""
        at, epoch = self.decided.get(change.tx, (self.fragment[1], 0 if change.prepared else change.epoch))
        return self.origins.of(change.tx, at, epoch)

    def undecided(self) -> dict[TxId, int]:
        """The transactions that were decided in another partition, and where: what is said of them is said there."""
        return {c.tx: c.decision for c in self.changes if c.prepared and c.tx not in self.decided}

    @property
    def topology(self) -> Topology | None:
        """The newest map that any of the logs has."""
        known = [found for reading in self.readings.values() if (found := reading.topology) is not None]
        return max(known, key=lambda topology: topology.version, default=None)

    def verdict(self) -> Verdict:
        """Who has what in the end. Only copies that the newest map calls in sync must be alike."""
        topology = self.topology
        stands = {node: reading.stands for node, reading in sorted(self.readings.items())}

        def counts(node: NodeId) -> bool:
            if topology is None or self.fragment[1] >= len(topology.placements):
                return True
            from rebalance.table import Standing  # noqa: PLC0415  # it is there, if there is a map

            return topology.placements[self.fragment[1]].standing_of(node) is Standing.OWNING

        last = max(filter(None, stands.values()), key=lambda change: (change.epoch, change.counter), default=None)
        alike = [node for node in stands if counts(node)]
        said = {node: _identity(stands[node]) for node in alike}
        differ = [node for node in alike if last is not None and said[node] != _identity(last)]
        behind = [
            node for node in stands if node not in alike and last is not None and _identity(stands[node]) != _identity(last)
        ]
        version = topology.version if topology is not None else NO_VERSION
        for change in self.changes if differ else ():
            has = [node for node in alike if self.readings[node].has(change)]
            lacking = [node for node in alike if node not in has and change.counter > self.readings[node].floor]
            if has and lacking:
                return Verdict(stands, last, differ, change, lacking, behind=behind, version=version)
        return Verdict(stands, last, differ, behind=behind, version=version)


class Reading:
    """One node's log, as far as it concerns the key."""

    def __init__(self, story: Story, node: NodeId, rest: AtRest, *, apart: bool) -> None:
        self._story = story
        self._node = node
        self._rest = rest
        self._standing: list[tuple[Change, Seen]] = []
        self._open: dict[TxId, list[tuple[Change, Seen]]] = {}
        self._gone: list[tuple[Change, Event]] = []
        self._compared = False  # a transfer of the rows that differ is under way
        blocks = KeyBlocks(story.fragment, story.key, self._open, apart=apart)
        self.ask, self.choose = blocks.ask, blocks.choose
        """What of a log is to be read, as for `wal.inspect`."""
        self._maps = Maps(story.origins, rest.topology)
        self.floor = rest.history_from
        """What lies at or below this counter may be missing here for a good reason."""

    @property
    def topology(self) -> Topology | None:
        """The newest map that was met."""
        return self._maps.newest

    @property
    def stands(self) -> Change | None:
        """What the key is here, by the log, or by the store where the log does not reach."""
        newest = max(self._standing, key=lambda one: (one[1].epoch, one[0].counter), default=None)
        return newest[0] if newest is not None else None

    def has(self, change: Change) -> bool:
        """Whether a change stood here at the end, or was followed by another that does."""
        mine = [seen for seen in change.seen if seen.node == self._node]
        return any(seen.since_lsn and not seen.until_lsn for seen in mine)

    def take(self, block: Block) -> None:
        """Read on."""
        for lsn, record in enumerate(block.records, block.first_lsn):
            self._take(lsn, block.time_ms, record)

    def _take(self, lsn: int, time_ms: int, record: r.Record) -> None:
        namespace, partition = self._story.fragment
        match record:
            case r.Update(writes):
                for write in writes:
                    self._write(lsn, time_ms, write, "reissued" if write.origin else "live")
            case r.History(writes):
                for write in writes:
                    self._write(lsn, time_ms, write, "history")
            case r.Prepare(tx, _, _, writes) if record.partition == partition:
                for write in writes:
                    self._write(lsn, time_ms, write, "reissued" if record.origin else "live", record)
            case r.Outcome(tx, at, _, commit) if at == partition:
                for change, seen in self._open.pop(tx, ()):
                    seen.rolled_back = not commit
                    if commit:
                        seen.since_lsn, seen.since_ms = lsn, time_ms
                        self._standing.append((change, seen))
            case r.Preload(ns, at) if (ns, at) == (namespace, partition):
                self._preload(lsn, time_ms, record)
            case r.EpochStart(at, epoch, firsts) if at == partition:
                self._give_up(epoch)
                for ns, first in firsts:
                    if ns == namespace:
                        self._cut(lsn, time_ms, first - 1, f"epoch {epoch} begins with counter {first}, below it")
            case r.Undo(ns, at, above) if (ns, at) == (namespace, partition):
                self._cut(lsn, time_ms, above, f"undone: what is above counter {above} was not continued")
            case r.FragmentClear(ns, at) if (ns, at) == (namespace, partition):
                self._clear(lsn, time_ms, record)
            case r.FragmentReady(ns, at, lwm, full=full) if (ns, at) == (namespace, partition):
                way = self._way(full=full)
                self._event(lsn, time_ms, f"caught up {way} to counter {lwm}{self._from()}")
                if full:
                    self.floor = max(lwm, self.floor)
            case r.Origin():
                self._story.origins.note(record)
            case r.Committed():
                self._maps.take(record)
            case _:
                pass

    def rename(self, change: Change, to: Change) -> None:
        """Two changes were found to be one."""
        self._standing = [(to if one is change else one, seen) for one, seen in self._standing]

    def end(self) -> None:
        """The log is read. What it does not tell, the store may; what went and came back at once did not go."""
        back = [change for change, _ in self._standing]
        self._story.events += [event for change, event in self._gone if not any(change is one for one in back)]
        entry, fragment = self._rest.entry, self._story.fragment
        if entry is None or fragment[0] == DECISIONS:
            return
        newest = max(((seen.epoch, change.counter) for change, seen in self._standing), default=(0, 0))
        if (entry.epoch, entry.counter) > newest and entry.counter <= self.floor:
            change = self._story.change(entry.epoch, entry.counter, entry.value, b"")
            self._add(change, Seen(self._node, self._rest.lsn, 0, "store", epoch=entry.epoch, since_lsn=self._rest.lsn))

    def take_decision(self, block: Block) -> None:
        """Read on in a partition where transactions of the story were decided."""
        for record in block.records:
            match record:
                case r.Update(writes) | r.History(writes):
                    for write in writes:
                        if write.namespace == DECISIONS:
                            self._story.decided.update((tx, (write.partition, write.issued)) for tx in write.keys)
                case r.Origin():
                    self._story.origins.note(record)
                case _:
                    pass

    def _give_up(self, epoch: int) -> None:
        """What an older primary had prepared and the new one knows of, it issues again with its epoch."""
        for tx in [tx for tx, held in self._open.items() if held[0][1].epoch < epoch]:
            del self._open[tx]

    def _write(self, lsn: int, time_ms: int, write: r.Write, how: How, prepare: r.Prepare | None = None) -> None:
        if write.fragment != self._story.fragment or self._story.key not in write.keys:
            return
        at = write.keys.index(self._story.key)
        tx = whole_of(prepare.tx if prepare is not None else write.tx)
        change = self._story.change(write.issued, write.start + 1 + at, write.values[at], tx)
        if prepare is None:
            self._add(change, Seen(self._node, lsn, time_ms, how, epoch=write.epoch, since_lsn=lsn, since_ms=time_ms))
            return
        change.prepared, change.decision = True, prepare.decision
        seen = Seen(self._node, lsn, time_ms, how, write.epoch)
        change.seen.append(seen)
        self._open.setdefault(prepare.tx, []).append((change, seen))

    def _way(self, *, full: bool) -> str:
        compared, self._compared = self._compared, False
        return "by history" if not full else "where it differed" if compared else "in full"

    def _clear(self, lsn: int, time_ms: int, record: r.FragmentClear) -> None:
        self._compared = record.kept
        self._event(lsn, time_ms, f"{'to be compared' if record.kept else 'cleared'}: {record.reason}")
        if not record.kept:
            self._cut(lsn, time_ms, 0)

    def _preload(self, lsn: int, time_ms: int, record: r.Preload) -> None:
        if self._story.key not in record.keys:
            return
        at = record.keys.index(self._story.key)
        if not record.counters[at]:
            may_differ = self._compared and not record.epochs[at]
            self._event(lsn, time_ms, f"{'may differ' if may_differ else 'told that there is no such key'}{self._from()}")
            self._cut(lsn, time_ms, 0)
            return
        change = self._story.change(record.epochs[at], record.counters[at], record.values[at], b"")
        self._add(change, Seen(self._node, lsn, time_ms, "full", epoch=record.epochs[at], since_lsn=lsn, since_ms=time_ms))

    def _add(self, change: Change, seen: Seen) -> None:
        change.seen.append(seen)
        self._standing.append((change, seen))

    def _cut(self, lsn: int, time_ms: int, above: int, what: str = "") -> None:
        gone = [one for one in self._standing if one[0].counter > above]
        for change, seen in gone:
            seen.until_lsn, seen.until_ms = lsn, time_ms
            if what:
                told = Event(self._node, lsn, time_ms, f"{change.name} does not stand any more: {what}")
                self._gone.append((change, told))
        self._standing = [one for one in self._standing if one[0].counter <= above]

    def _event(self, lsn: int, time_ms: int, what: str) -> None:
        self._story.events.append(Event(self._node, lsn, time_ms, what))

    def _from(self) -> str:
        topology, partition = self.topology, self._story.fragment[1]
        if topology is None or partition >= len(topology.placements):
            return ""
        primary = topology.placements[partition].primary
        return f", from {primary}" if primary is not None and primary != self._node else ""


def _identity(change: Change | None) -> tuple[int, int, bool, str] | None:
    return None if change is None else (change.epoch, change.counter, change.deleted, change.hash)


def _same(row: Change, change: Change) -> bool:
    """Whether a row that was transferred is this change, as an epoch issued it again."""
    return (
        (row.counter, row.deleted, row.hash) == (change.counter, change.deleted, change.hash)
        and change.epoch <= row.epoch
        and any(seen.epoch == row.epoch for seen in change.seen)
    )
