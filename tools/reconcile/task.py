"""The judging of one share: its partitions one after the other, whatever its rows and logs come from.

Copies of directories (`tools.reconcile.share`) and sketches of them (`tools.reconcile.sketched`) are judged by the same
rules; they differ in what has to be read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar
from zlib import compress, decompress

import msgspec

from engine.offline.directory import FragmentView, PartitionView
from engine.state.identity import Identity
from rebalance.table import Placement, Standing, Topology
from tools.reconcile.compare import compare
from tools.reconcile.copies import Compared, Copy, standing
from tools.reconcile.counts import Counts, Tally
from tools.reconcile.findings import Finding, Kind
from tools.reconcile.plan import Share
from tools.reconcile.rows import Run
from tools.reconcile.transactions import PartitionCopy, compare_transactions
from tools.wal.rows import Rows as LogSaid
from wal import PartitionCounter
from wal.ids import Fragment, Namespace, NodeId, Version

UNSETTLED_KEPT = 100_000
"""So many keys of a share are looked at again; what is more stays unsettled."""
LINES_AT_ONCE = 1_000
LOADING = "LOADING"
"""A copy that is being filled, by its own log."""


class Unsettled(msgspec.Struct):
    """Keys of one fragment that could not be compared; `stale`: nothing was writing it."""

    namespace: Namespace
    partition: int
    keys: list[bytes]
    stale: bool


class PartSum(msgspec.Struct, frozen=True):
    """Some rows of one copy of a fragment: the digest that was written for all of them, and that of these."""

    node: NodeId
    namespace: Namespace
    partition: int
    written: int
    found: int


class ShareResult(msgspec.Struct):
    """What came of a share: findings, in the order of partition, namespace, key; and the counts.

    `packed` are findings as lines of JSON, LINES_AT_ONCE at a time and compressed, for there may be very many; `kept` is
    how many. `unsettled` are keys that may be looked at again, UNSETTLED_KEPT at most, if the rules ask for them. `sums`
    are of fragments that were cut.
    """

    packed: list[bytes] = []
    kept: int = 0
    counts: Counts = msgspec.field(default_factory=Counts)
    unsettled: list[Unsettled] = []
    sums: list[PartSum] = []

    def keep(self, lines: Iterable[bytes]) -> None:
        """Keep findings, which come after those that it has."""
        left = iter(lines)
        while some := list(islice(left, LINES_AT_ONCE)):
            self.packed.append(compress(b"\n".join(some), level=1))
            self.kept += len(some)

    def lines(self) -> Iterator[bytes]:
        """The findings."""
        for some in self.packed:
            yield from decompress(some).split(b"\n")


class Side(Protocol):
    """What one node has, of what a share is about: `engine.offline.directory.State`, or what stands for it."""

    identity: Identity
    version: Version
    topology: Topology | None
    fragments: dict[Fragment, FragmentView]
    partitions: dict[int, PartitionView]
    unequal: dict[Fragment, tuple[int, int]]


S = TypeVar("S", bound=Side)


def nothing() -> None:
    """What is left to do where nothing is."""


class Read(NamedTuple):
    """Rows side by side; `only` of these keys, if not of all. `done` is called once they were compared."""

    runs: Iterable[Run]
    only: Sequence[bytes] | None = None
    done: Callable[[], None] = nothing


class Task(ABC, Generic[S]):
    """The partitions of one share, one after the other. Whoever is one says where rows and logs come from."""

    def __init__(self, share: Share, states: Sequence[S], result: ShareResult) -> None:
        self.findings: list[Finding] = []
        self.share = share
        self.states = states
        self.said: dict[Fragment, tuple[NodeId, LogSaid]] = {}  # of each fragment one log, and what it says
        self._kept = 0  # unsettled keys
        self.topology = max((s.topology for s in states if s.topology is not None), key=_version, default=None)
        self.result = result
        self.names: dict[int, dict[Namespace, None]] = {}
        for state in states:
            for namespace, number in share.keys or ([share.piece] if share.piece is not None else state.fragments):
                self.names.setdefault(number, {})[namespace] = None

    @abstractmethod
    def hear(self) -> None:
        """Before the first partition: hear what logs say of the rows (`said`)."""

    @abstractmethod
    def read(self, name: Fragment, states: Sequence[S], copies: Sequence[Copy], placement: Placement) -> Read:
        """The rows of these copies."""

    def partition(self, number: int, unread: Mapping[NodeId, str]) -> None:
        """Compare one partition: what could not be read, its transactions, its fragments by name."""
        counts, share = self.result.counts, self.share
        if share.piece is not None:
            if self.topology is not None:
                self._piece(share.piece, self.topology.placements[number], unread)
            return
        for node, problem in unread.items():
            self.add(Finding(Kind.UNREADABLE, number, on=[node], detail=problem))
        if self.topology is None:
            return
        placement = self.topology.placements[number]
        readable = [s for s in self.states if s.identity.node not in unread]
        compared = [s for s in readable if self.standing(s, placement) == Standing.OWNING]
        for node in placement.in_sync:
            if all(s.identity.node != node for s in compared):
                counts.absent[node] = counts.absent.get(node, 0) + 1
        if placement.lost:
            counts.lost.append(number)
        transactions = compare_transactions(
            number,
            [PartitionCopy(s.identity.node, s.partitions[number]) for s in readable if number in s.partitions],
            placement.primary,
            share.decisions,
            share.rules,
            in_sync=[s.identity.node for s in compared],
            ended=share.ended,
            torn=[one for one in share.torn if one.partition == number],
        )
        counts.transactions_under_way += transactions.under_way
        for finding in transactions.findings:
            self.add(finding)
        for namespace in sorted(self.names.get(number, {})):
            self._fragment((namespace, number), placement, readable)

    def standing(self, state: S, placement: Placement) -> str:
        """What a node's copies of a partition are, by the newest topology."""
        assert self.topology is not None, "without a topology nothing is compared"
        return standing(self.topology, placement, state.identity.node, state.identity.allocation)

    def _fragment(self, name: Fragment, placement: Placement, readable: Sequence[S]) -> None:
        """Every copy that has a history, whatever its role; only one that is being filled is left out."""
        counts, rules = self.result.counts, self.share.rules
        roles = {s.identity.node: self.standing(s, placement) for s in readable}
        compared = [s for s in self.compared(name, placement) if s in readable]
        copies = [self.copy(s, name, roles[s.identity.node]) for s in compared]
        ahead = 0
        known = {s.identity.node for s in readable if name in s.fragments} | set(placement.in_sync)
        counts.copies_known += len(known)
        if copies:
            read = self.read(name, compared, copies, placement)
            found = compare(name, copies, placement.primary, rules, runs=read.runs, only=read.only)
            self._keep(name, found)
            read.done()
            self._sum_up(name, compared)
            ahead = max(found.cut, *(c.view.counter.lwm for c in copies)) if placement.lost else found.cut
            tally = counts.namespaces.setdefault(name[0], Tally())
            tally.fragments += 1
            tally.keys += found.keys
            tally.findings += len(found.findings) + sum(name in s.unequal for s in compared)
            counts.copies += len(copies)
            if len(copies) == 1:
                counts.alone += 1
                counts.single += self.topology is not None and self.topology.group_of(name[1]).places == 1
            counts.unsettled_keys += found.unsettled_keys
            counts.stale_keys += found.stale_keys
            counts.unsettled_gaps += found.unsettled_gaps
            for finding in sorted((*found.findings, *_unequal(name, compared)), key=_about_a_key):
                self.add(finding)
        for state in readable:
            view = state.fragments.get(name)
            standing = LOADING if _loading(state, name) else roles[state.identity.node]
            if view is not None and standing != Standing.OWNING:
                self._apart(state.identity.node, standing, max(0, ahead - view.counter.lwm))

    def _piece(self, name: Fragment, placement: Placement, unread: Container[NodeId]) -> None:
        """Some rows of a fragment; who has the first ones says all else about it."""
        counts = self.result.counts
        compared = [s for s in self.compared(name, placement) if s.identity.node not in unread]
        copies = [self.copy(s, name, self.standing(s, placement)) for s in compared]
        if not copies:
            return
        read = self.read(name, compared, copies, placement)
        found = compare(name, copies, placement.primary, self.share.rules, runs=read.runs, only=read.only)
        found.findings = [f for f in found.findings if f.key is not None or f.kind is Kind.UNREADABLE]
        self._keep(name, found)
        read.done()
        self._sum_up(name, compared)
        tally = counts.namespaces.setdefault(name[0], Tally())
        tally.keys += found.keys
        tally.findings += len(found.findings)
        counts.unsettled_keys += found.unsettled_keys
        counts.stale_keys += found.stale_keys
        for finding in found.findings:
            self.add(finding)

    def _sum_up(self, name: Fragment, compared: Sequence[S]) -> None:
        """Where rows were only some of a fragment's, their sums are for whoever has all of them."""
        if name in self.share.ranges:
            for state in compared:
                written, found = state.unequal.pop(name, (0, 0))
                if written or found:
                    self.result.sums.append(PartSum(state.identity.node, *name, written, found))

    def _keep(self, name: Fragment, found: Compared) -> None:
        """What may be looked at again; of what was, all is told."""
        share, kept = self.share, self.result.unsettled
        if share.keys or (share.rules.again and found.unsettled and self._kept < UNSETTLED_KEPT):
            keys = found.unsettled[: UNSETTLED_KEPT - self._kept]
            self._kept += len(keys)
            kept.append(Unsettled(*name, keys, bool(found.stale_keys)))

    def copy(self, state: S, name: Fragment, role: str) -> Copy:
        node, said = self.said.get(name, ("", None))
        return Copy(
            state.identity.node,
            state.version,
            state.partitions.get(name[1]) or PartitionView(),
            state.fragments.get(name) or FragmentView(name, PartitionCounter()),
            {},
            role=role,
            said=said if node == state.identity.node else None,
        )

    def compared(self, name: Fragment, placement: Placement) -> list[S]:
        """Whose copies are compared."""
        return [
            s
            for s in self.states
            if not _loading(s, name) and (name in s.fragments or self.standing(s, placement) == Standing.OWNING)
        ]

    def _apart(self, node: NodeId, standing: str, behind: int) -> None:
        apart = self.result.counts.apart
        fragments, before = apart.get(f"{node} {standing}", (0, 0))
        apart[f"{node} {standing}"] = (fragments + 1, before + behind)

    def put_away(self) -> None:
        """What was found so far goes to the result."""
        self.result.keep(msgspec.json.encode(self.to_be_asked(finding)) for finding in self.findings)
        self.findings = []

    def to_be_asked(self, finding: Finding) -> Finding:
        """A finding as whoever asks the logs about it wants it."""
        return finding

    def add(self, finding: Finding) -> None:
        result, limit = self.result, self.share.limit
        result.counts.kinds[finding.kind] = result.counts.kinds.get(finding.kind, 0) + 1
        result.counts.incomplete += finding.incomplete
        if not limit or result.kept + len(self.findings) < limit:
            self.findings.append(finding)


def _about_a_key(finding: Finding) -> bool:
    return finding.key is not None


def _unequal(name: Fragment, states: Sequence[Side]) -> Iterator[Finding]:
    """Copies whose rows are not what their own checkpoint wrote, whatever the others have."""
    for state in states:
        sums = state.unequal.get(name)
        if sums is not None:
            yield contents_mismatch(name, state.identity.node, *sums)


def contents_mismatch(name: Fragment, node: NodeId, written: int, found: int) -> Finding:
    """The rows of a copy's last checkpoint do not add up to what was written with them."""
    return Finding(
        Kind.CONTENTS_MISMATCH,
        name[1],
        name[0],
        on=[node],
        copies={node: {"written": f"{written:016x}", "found": f"{found:016x}"}},
        detail="a row of the last checkpoint is missing, or is another than was written",
    )


def _loading(state: Side, name: Fragment) -> bool:
    view = state.fragments.get(name)
    return view is not None and view.loading


def _version(topology: Topology) -> tuple[int, int]:
    return topology.version
