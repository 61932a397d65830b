"""One task: some partitions, and the files of all nodes for them. Only findings and counts leave it.

It opens every directory once, for its own partitions, and judges by the newest topology that these directories know by
then; so a share needs nothing of another one, and gives the same answer wherever it runs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack

import msgspec

from engine.errors import CorruptionError
from engine.offline.directory import DoesNotFold, FragmentView, PartitionView, State, read_directory
from engine.offline.rows import Reading, Tell, side_by_side
from engine.state.store import Row
from rebalance.table import CopyState, Placement, Topology
from tools.reconcile.compare import compare, core_of, cut_of
from tools.reconcile.copies import Compared, Copy, Level
from tools.reconcile.evidence import attributed
from tools.reconcile.findings import Finding, Kind
from tools.reconcile.rows import Run
from tools.reconcile.survey import Share
from tools.reconcile.transactions import PartitionCopy, compare_transactions
from tools.wal.rows import LogRows
from tools.wal.rows import Rows as LogSaid
from wal import Block, PartitionCounter, inspect
from wal.ids import Fragment, Namespace, NodeId

OTHER_DISK = "OTHER-DISK"
"""A copy on a disk that is not the one the cluster knows."""
LEFTOVER = "LEFTOVER"
"""A copy that the newest topology does not place there."""
UNSETTLED_KEPT = 100_000
"""So many keys of a share are looked at again; what is more stays unsettled."""
LOADING = "LOADING"
"""A copy that is being filled, by its own log."""


class Tally(msgspec.Struct):
    """What was looked at, of one namespace."""

    fragments: int = 0
    keys: int = 0
    findings: int = 0


class Counts(msgspec.Struct):
    """What was looked at, and what could not be. `apart` is by node and state: fragments, and counters behind.

    `copies` were compared, of `copies_known`: those that the map calls in sync, and what else was found.
    """

    namespaces: dict[Namespace, Tally] = {}
    copies: int = 0
    copies_known: int = 0
    alone: int = 0  # fragments with one copy only: read, and compared with nothing
    lost: list[int] = []  # partitions that no in-sync copy is left of
    unsettled_keys: int = 0
    stale_keys: int = 0  # of these, keys that cannot be on their way any more
    unsettled_gaps: int = 0
    transactions_under_way: int = 0
    apart: dict[str, tuple[int, int]] = {}
    absent: dict[NodeId, int] = {}  # in-sync copies of partitions whose directory was not given, or cannot be read
    kinds: dict[str, int] = {}
    incomplete: int = 0
    by_digest: int = 0  # fragments whose rows were not read: all copies' digests agree

    def add(self, other: Counts) -> None:
        """Count what another share counted."""
        for namespace, theirs in other.namespaces.items():
            mine = self.namespaces.setdefault(namespace, Tally())
            mine.fragments += theirs.fragments
            mine.keys += theirs.keys
            mine.findings += theirs.findings
        self.copies += other.copies
        self.copies_known += other.copies_known
        self.lost += other.lost
        self.alone += other.alone
        self.unsettled_keys += other.unsettled_keys
        self.stale_keys += other.stale_keys
        self.unsettled_gaps += other.unsettled_gaps
        self.transactions_under_way += other.transactions_under_way
        self.incomplete += other.incomplete
        self.by_digest += other.by_digest
        for name, (fragments, behind) in other.apart.items():
            had = self.apart.get(name, (0, 0))
            self.apart[name] = (had[0] + fragments, had[1] + behind)
        for node, partitions in other.absent.items():
            self.absent[node] = self.absent.get(node, 0) + partitions
        for kind, count in other.kinds.items():
            self.kinds[kind] = self.kinds.get(kind, 0) + count


class Unsettled(msgspec.Struct):
    """Keys of one fragment that could not be compared; `stale`: nothing was writing it."""

    namespace: Namespace
    partition: int
    keys: list[bytes]
    stale: bool


class ShareResult(msgspec.Struct):
    """What came of a share: findings as JSON, in the order of partition, namespace, key; and the counts.

    `unsettled` are keys that may be looked at again, UNSETTLED_KEPT at most, if the rules ask for them.
    """

    findings: list[bytes] = []
    counts: Counts = msgspec.field(default_factory=Counts)
    unsettled: list[Unsettled] = []


def check_share(share: Share) -> ShareResult:
    """Read a share of all directories and compare it."""
    result = ShareResult()
    with ExitStack() as open_states:
        states: list[State] = []
        unread: dict[int, dict[NodeId, str]] = {}
        for node, path in share.directories.items():
            state, problems = _open(path, share.partitions)
            if state is not None:
                states.append(open_states.enter_context(state))
            for number, problem in problems.items():
                unread.setdefault(number, {})[node] = problem
        task = _Task(share, states, result)
        task.hear()
        for number in share.partitions:
            task.partition(number, unread.get(number, {}))
        found = attributed(task.findings, states, share.maps)
        result.findings = [msgspec.json.encode(finding) for finding in found]
    return result


def _open(path: str, partitions: Sequence[int]) -> tuple[State | None, dict[int, str]]:
    """One directory's share, without the partitions of it that do not fold; and these, with the reason."""
    try:
        return read_directory(path, partitions=partitions, tolerant=True), {}
    except DoesNotFold:
        unread = _not_folding(path, partitions)
    except CorruptionError as error:
        unread = dict.fromkeys(partitions, str(error))
    rest = set(partitions) - set(unread)
    return (read_directory(path, partitions=rest, tolerant=True) if rest else None), unread


def _log_rows(state: State, wanted: Container[Fragment], above: Mapping[Fragment, int]) -> LogRows:
    """What a log says of each key of some fragments, up to where the state was folded.

    Of fragments of which some copy is `above` a counter, it keeps every later update, as far as the log goes by now.
    """
    rows = LogRows(wanted.__contains__, above)
    until = None if above and state.damage is None else state.lsn or None
    for found in inspect(state.path / "wal", to_lsn=until):
        if isinstance(found, Block):
            rows.beyond = found.first_lsn > state.lsn
            rows.take(found.records)
    return rows


def _not_folding(path: str, partitions: Sequence[int]) -> dict[int, str]:
    """Halve until the partitions that do not fold stand alone."""
    try:
        read_directory(path, partitions=partitions, tolerant=True).close()
    except DoesNotFold as error:
        if len(partitions) == 1:
            return {partitions[0]: str(error)}
        half = len(partitions) // 2
        return _not_folding(path, partitions[:half]) | _not_folding(path, partitions[half:])
    return {}


class _Task:
    """The partitions of one share, one after the other."""

    def __init__(self, share: Share, states: Sequence[State], result: ShareResult) -> None:
        self.findings: list[Finding] = []
        self._share = share
        self._states = states
        self._said: dict[Fragment, tuple[NodeId, LogSaid]] = {}  # of each fragment one log, and what it says
        self._equal: dict[Fragment, bool] = {}
        self._kept = 0  # unsettled keys
        self._topology = max((s.topology for s in states if s.topology is not None), key=_version, default=None)
        self._result = result
        self._names: dict[int, dict[Namespace, None]] = {}
        for state in states:
            for namespace, number in share.keys or state.fragments:
                self._names.setdefault(number, {})[namespace] = None

    def hear(self) -> None:
        """Read the logs that are asked: for each fragment the one that reaches furthest back. Mostly that is one log."""
        if self._topology is None:
            return
        asked: dict[NodeId, dict[Fragment, None]] = {}
        above: dict[Fragment, int] = {}
        for number, namespaces in sorted(self._names.items()):
            placement = self._topology.placements[number]
            for namespace in namespaces:
                name = (namespace, number)
                if self._equal_digests(name, placement):
                    continue
                copies = [self._copy(s, name, self._standing(s, placement)) for s in self._compared(name, placement)]
                heard = [c for c in core_of(copies) if c.node not in self._share.unheard] if copies else []
                if heard:
                    witness = min(heard, key=lambda c: c.view.history_from).node
                    asked.setdefault(witness, {})[name] = None
                    cut = cut_of(core_of(copies))
                    if any(c.view.counter.highest_applied > cut for c in copies):
                        above[name] = cut
        for state in self._states:
            node = state.identity.node
            if node in asked:
                log = _log_rows(state, asked[node], {name: above[name] for name in asked[node] if name in above})
                self._said |= {name: (node, log.fragments.get(name) or LogSaid()) for name in asked[node]}

    def partition(self, number: int, unread: Mapping[NodeId, str]) -> None:
        """Compare one partition: what could not be read, its transactions, its fragments by name."""
        counts, share = self._result.counts, self._share
        for node, problem in unread.items():
            self._add(Finding(Kind.UNREADABLE, number, on=[node], detail=problem))
        if self._topology is None:
            return
        placement = self._topology.placements[number]
        readable = [s for s in self._states if s.identity.node not in unread]
        compared = [s for s in readable if self._standing(s, placement) == CopyState.OWNING]
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
            self._add(finding)
        for namespace in sorted(self._names.get(number, {})):
            self._fragment((namespace, number), placement, readable)

    def _standing(self, state: State, placement: Placement) -> str:
        """What a node's copies of a partition are, by the newest topology."""
        assert self._topology is not None
        node = state.identity.node
        if node not in placement.owners and node not in placement.in_sync:
            return LEFTOVER
        if self._topology.allocations.get(node) != state.identity.allocation:
            return OTHER_DISK
        return CopyState.OWNING if node in placement.in_sync else CopyState.MOVING

    def _fragment(self, name: Fragment, placement: Placement, readable: Sequence[State]) -> None:
        """Every copy that has a history, whatever its role; only one that is being filled is left out."""
        counts, rules, share = self._result.counts, self._share.rules, self._share
        roles = {s.identity.node: self._standing(s, placement) for s in readable}
        compared = [s for s in self._compared(name, placement) if s in readable]
        copies = [self._copy(s, name, roles[s.identity.node]) for s in compared]
        ahead = 0
        known = {s.identity.node for s in readable if name in s.fragments} | set(placement.in_sync)
        counts.copies_known += len(known)
        if copies:
            reading: list[Reading] = []
            again = share.keys.get(name)
            runs: Iterable[Run] = ()
            if again is not None:
                runs = [[_rows_of(s, name, again, _noting(c.damaged)) for s, c in zip(compared, copies, strict=True)]]
            elif self._equal_digests(name, placement):
                counts.by_digest += 1
            else:
                reading = [s.reading(name, _noting(c.damaged)) for s, c in zip(compared, copies, strict=True)]
                runs = side_by_side(reading)
            found = compare(name, copies, placement.primary, rules, runs, again)
            self._keep(name, found)
            for state, read in zip(compared, reading, strict=bool(reading)):
                state.note(name, read)
            ahead = max(found.cut, *(c.view.counter.lwm for c in copies)) if placement.lost else found.cut
            tally = counts.namespaces.setdefault(name[0], Tally())
            tally.fragments += 1
            tally.keys += found.keys
            tally.findings += len(found.findings) + sum(name in s.unequal for s in compared)
            counts.copies += len(copies)
            counts.alone += len(copies) == 1
            counts.unsettled_keys += found.unsettled_keys
            counts.stale_keys += found.stale_keys
            counts.unsettled_gaps += found.unsettled_gaps
            for finding in sorted((*found.findings, *_unequal(name, compared)), key=_about_a_key):
                self._add(finding)
        for state in readable:
            view = state.fragments.get(name)
            standing = LOADING if _loading(state, name) else roles[state.identity.node]
            if view is not None and standing != CopyState.OWNING:
                self._apart(state.identity.node, standing, max(0, ahead - view.counter.lwm))

    def _keep(self, name: Fragment, found: Compared) -> None:
        """What may be looked at again; of what was, all is told."""
        share, kept = self._share, self._result.unsettled
        if share.keys or (share.rules.again and found.unsettled and self._kept < UNSETTLED_KEPT):
            keys = found.unsettled[: UNSETTLED_KEPT - self._kept]
            self._kept += len(keys)
            kept.append(Unsettled(*name, keys, bool(found.stale_keys)))

    def _copy(self, state: State, name: Fragment, role: str) -> Copy:
        node, said = self._said.get(name, ("", None))
        return Copy(
            state.identity.node,
            state.version,
            state.partitions.get(name[1]) or PartitionView(),
            state.fragments.get(name) or FragmentView(name, PartitionCounter()),
            {},
            role=role,
            said=said if node == state.identity.node else None,
        )

    def _equal_digests(self, name: Fragment, placement: Placement) -> bool:
        """Whether nobody needs to see the rows: all copies are at one counter, and their digests are equal."""
        if self._share.rules.level is not Level.DIGEST:
            return False
        if name not in self._equal:
            states = self._compared(name, placement)
            views = [s.fragments.get(name) for s in states]
            at = {(v.counter.lwm, v.counter.hwm, v.digests.get(v.counter.lwm)) if v is not None else None for v in views}
            alike = len(states) > 1 and len(at) == 1 and None not in at
            sums = {s.contents(name) for s in states} if alike else set()
            self._equal[name] = len(sums) == 1 and None not in sums
        return self._equal[name]

    def _compared(self, name: Fragment, placement: Placement) -> list[State]:
        """Whose copies are compared."""
        return [
            s
            for s in self._states
            if not _loading(s, name) and (name in s.fragments or self._standing(s, placement) == CopyState.OWNING)
        ]

    def _apart(self, node: NodeId, standing: str, behind: int) -> None:
        apart = self._result.counts.apart
        fragments, before = apart.get(f"{node} {standing}", (0, 0))
        apart[f"{node} {standing}"] = (fragments + 1, before + behind)

    def _add(self, finding: Finding) -> None:
        result, limit = self._result, self._share.limit
        result.counts.kinds[finding.kind] = result.counts.kinds.get(finding.kind, 0) + 1
        result.counts.incomplete += finding.incomplete
        if not limit or len(self.findings) < limit:
            self.findings.append(finding)


def _rows_of(state: State, name: Fragment, keys: Sequence[bytes], tell: Tell) -> list[Row]:
    """What a copy has of some keys, which ascend."""
    return [(key, entry) for key in keys if (entry := state.row(name, key, tell)) is not None]


def _noting(damaged: dict[bytes | None, str]) -> Tell:
    """Note what is wrong with a key; the first that is said of it counts."""

    def told(key: bytes | None, what: str) -> None:
        damaged.setdefault(key, what)

    return told


def _about_a_key(finding: Finding) -> bool:
    return finding.key is not None


def _unequal(name: Fragment, states: Sequence[State]) -> Iterator[Finding]:
    """Copies whose rows are not what their own checkpoint wrote, whatever the others have."""
    for state in states:
        sums = state.unequal.get(name)
        if sums is not None:
            node = state.identity.node
            yield Finding(
                Kind.CONTENTS_MISMATCH,
                name[1],
                name[0],
                on=[node],
                copies={node: {"written": f"{sums[0]:016x}", "found": f"{sums[1]:016x}"}},
                detail="a row of the last checkpoint is missing, or is another than was written",
            )


def _loading(state: State, name: Fragment) -> bool:
    view = state.fragments.get(name)
    return view is not None and view.loading


def _version(topology: Topology) -> tuple[int, int]:
    return topology.version
