"""One task: some partitions, and the files of all nodes for them; or some findings. Only findings and counts leave it.

It opens every directory once, for its own partitions, and judges by the newest topology that these directories know by
then; so a share needs nothing of another one, and gives the same answer wherever it runs.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

import msgspec

from engine.errors import CorruptionError
from engine.offline.directory import State, read_directory
from engine.offline.refusals import DoesNotFold
from engine.offline.rows import Tell, side_by_side
from engine.state.store import Row
from rebalance.table import Placement
from tools.reconcile.compare import core_of, cut_of
from tools.reconcile.copies import Copy, Level
from tools.reconcile.evidence import ask, attributed, looked_up, placed
from tools.reconcile.fetched import here
from tools.reconcile.findings import Finding, Kind
from tools.reconcile.plan import Range, Share
from tools.reconcile.shelf import of_partitions, shelved, split
from tools.reconcile.task import LINES_AT_ONCE, Read, ShareResult, Task
from tools.reconcile.uncollected import uncollected
from tools.wal.rows import LogRows
from tools.wal.rows import Rows as LogSaid
from wal import begins
from wal.codec import NewerFormat
from wal.ids import Fragment, NodeId
from wal.packed import PackedBlock, skim
from wal.records import Trimmed


@uncollected
def check_share(share: Share) -> ShareResult:
    """Read a share of all directories and compare it. Logs are not asked about what is found: `attribute` does that."""
    result = ShareResult()
    with opened(share.directories, share.partitions, share.at_rest) as (states, unread):
        task = _OfDirectories(share, states, result)
        task.hear()
        for number in share.partitions:
            task.partition(number, unread.get(number, {}))
            if len(task.findings) >= LINES_AT_ONCE:
                task.put_away()
        task.put_away()
    return result


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Findings that the logs have not been asked about, whatever share found them; the rest is as in a `Share`."""

    directories: dict[NodeId, str]
    at_rest: list[NodeId]
    maps: dict[NodeId, list[tuple[int, str]]]
    ends: dict[NodeId, int]
    result: ShareResult


def found_by(share: Share, result: ShareResult) -> Found:
    """What was found in a share of some directories, or in all of them."""
    return Found(directories=share.directories, at_rest=share.at_rest, maps=share.maps, ends=share.ends, result=result)


@uncollected
def attribute(found: Found) -> ShareResult:
    """The findings, each with what the logs tell of it; a log is read once for all of them.

    Mostly each says where in the logs that stands; only for the others are directories opened once more.
    """
    findings = [msgspec.json.decode(line, type=Finding) for line in found.result.lines()]
    placed = [f for f in findings if f.sought]
    others = [f for f in findings if not f.sought]
    logs = {node: (here(path) / "wal", found.ends[node]) for node, path in found.directories.items()}
    told = iter(looked_up(placed, logs))
    numbers = sorted({finding.partition for finding in others if finding.namespace})
    if numbers:
        with opened(found.directories, numbers, found.at_rest) as (states, _):
            others = attributed(others, states, found.maps, ask)
    left, result = iter(others), ShareResult()
    result.keep(msgspec.json.encode(next(told) if finding.sought else next(left)) for finding in findings)
    return result


@contextmanager
def opened(
    directories: Mapping[NodeId, str], partitions: Sequence[int], at_rest: Container[NodeId]
) -> Iterator[tuple[list[State], dict[int, dict[NodeId, str]]]]:
    """Some partitions of all directories, as far as they fold; and what does not, by partition and node."""
    with ExitStack() as open_states:
        states: list[State] = []
        unread: dict[int, dict[NodeId, str]] = {}
        for node, path in directories.items():
            state, problems = open_share(path, partitions, log=node not in at_rest)
            if state is not None:
                states.append(open_states.enter_context(state))
            for number, problem in problems.items():
                unread.setdefault(number, {})[node] = problem
        yield states, unread


def open_share(path: str, partitions: Sequence[int], *, log: bool = True) -> tuple[State | None, dict[int, str]]:
    """One directory's share, without the partitions of it that do not fold; and these, with the reason.

    Without `log` its checkpoint is all that there is.
    """
    try:
        return read_directory(here(path), partitions=partitions, tolerant=True, log=log), {}
    except DoesNotFold:
        unread = _not_folding(path, partitions)
    except CorruptionError as error:
        unread = dict.fromkeys(partitions, str(error))
    rest = set(partitions) - set(unread)
    return (read_directory(here(path), partitions=rest, tolerant=True) if rest else None), unread


def log_rows(
    state: State,
    wanted: Container[Fragment],
    above: Mapping[Fragment, int],
    ranges: Mapping[Fragment, Range] = MappingProxyType({}),
    shelf: str = "",
    partitions: Sequence[int] = (),
) -> LogRows:
    """What a log says of each key of some fragments, or of a range of their keys, up to where the state was folded.

    With a `shelf` what lies there of these `partitions`, which are those of the fragments, is not read from the log.

    Of fragments of which some copy is `above` a counter, it keeps every later update, as far as the log goes by now. A
    write that cannot be opened is told (`unopened`): then nothing that this log says is the whole of it. Where its node
    trimmed the log meanwhile, the copies' histories begin later (`State.fragments`), and so does what is said.
    """
    rows = LogRows(wanted.__contains__, above, ranges)

    def take(block: PackedBlock) -> None:
        rows.beyond = block.first_lsn > state.lsn
        rows.take(block.records)

    until = None if above and state.damage is None else state.lsn or None
    from_lsn = _hear_shelved(state, rows, shelf, partitions, until) if shelf else 1
    if from_lsn == 0:
        return log_rows(state, wanted, above, ranges)
    done = until is not None and from_lsn > until
    found = [] if done else skim(state.path / "wal", take, from_lsn, until)
    rows.unopened = next((str(one) for one in found if one.kind == "newer"), "")
    if begins(state.path / "wal") > state.log_begins:
        _forget_trimmed(state, rows, [name for name in state.fragments if name in wanted])
    return rows


def _hear_shelved(state: State, rows: LogRows, shelf: str, partitions: Sequence[int], until: int | None) -> int:
    """Hear what was put down of a log, and say from where on it has to be read; 0: as if nothing had been heard."""
    node = state.identity.node
    segments = shelved(state.path / "wal", shelf, node)
    if not segments:
        return 1
    try:
        for entries in of_partitions(Path(shelf), node, segments, partitions):
            here, beyond = split(entries, state.lsn)
            rows.beyond = False
            rows.take(here)
            if until is None and beyond:
                rows.beyond = True
                rows.take(beyond)
    except (NewerFormat, OSError):
        return 0
    return segments[max(segments)].last_lsn + 1


def _forget_trimmed(state: State, rows: LogRows, names: Sequence[Fragment]) -> None:
    """What was heard of segments that went while the log was read is not all that they told: it is as if not heard.

    The log says what went, behind where the state was folded; if that went as well, nothing is known of any fragment.
    """
    above: dict[Fragment, int] = {}
    first = 0

    def take(block: PackedBlock) -> None:
        nonlocal first
        first = first or block.first_lsn
        for record in block.records:
            if isinstance(record, Trimmed):
                for namespace, number, counter in record.dropped:
                    above[namespace, number] = max(counter, above.get((namespace, number), 0))

    missing = skim(state.path / "wal", take, from_lsn=state.lsn + 1)
    unknown = first > state.lsn + 1 or any(one.damage for one in missing)
    for name in names:
        view = state.fragments[name]
        counter = view.counter.highest_applied if unknown else above.get(name, 0)
        if counter > view.history_from:
            state.fragments[name] = msgspec.structs.replace(view, history_from=counter)
            if name in rows.fragments:
                rows.fragments[name].forget(counter)


def _not_folding(path: str, partitions: Sequence[int]) -> dict[int, str]:
    """Halve until the partitions that do not fold stand alone."""
    try:
        read_directory(here(path), partitions=partitions, tolerant=True).close()
    except DoesNotFold as error:
        if len(partitions) == 1:
            return {partitions[0]: str(error)}
        half = len(partitions) // 2
        return _not_folding(path, partitions[:half]) | _not_folding(path, partitions[half:])
    return {}


class _OfDirectories(Task[State]):
    """A comparison of directories."""

    def __init__(self, share: Share, states: Sequence[State], result: ShareResult) -> None:
        super().__init__(share, states, result)
        self._equal: dict[Fragment, bool] = {}

    def hear(self) -> None:
        """Read the logs that are asked: for each fragment the one that reaches furthest back. Mostly that is one log."""
        if self.topology is None:
            return
        asked: dict[NodeId, dict[Fragment, None]] = {}
        above: dict[Fragment, int] = {}
        for number, namespaces in sorted(self.names.items()):
            placement = self.topology.placements[number]
            for namespace in namespaces:
                name = (namespace, number)
                if self._equal_digests(name, placement):
                    continue
                copies = [self.copy(s, name, self.standing(s, placement)) for s in self.compared(name, placement)]
                heard = [c for c in core_of(copies) if c.node not in self.share.unheard] if copies else []
                if heard:
                    witness = min(heard, key=lambda c: c.view.history_from).node
                    asked.setdefault(witness, {})[name] = None
                    cut = cut_of(core_of(copies))
                    if any(c.view.counter.highest_applied > cut for c in copies):
                        above[name] = cut
        for state in self.states:
            node = state.identity.node
            if node in asked:
                beyond = {name: above[name] for name in asked[node] if name in above}
                numbers = sorted({number for _, number in asked[node]})
                log = log_rows(
                    state, asked[node], beyond, ranges=self.share.ranges, shelf=self.share.shelf, partitions=numbers
                )
                if log.unopened:
                    self.add(Finding(Kind.UNREADABLE, on=[node], detail=log.unopened))
                    continue
                self.said |= {name: (node, log.fragments.get(name) or LogSaid()) for name in asked[node]}

    def to_be_asked(self, finding: Finding) -> Finding:
        """With where its record stands in the logs, if that is known."""
        name = (finding.namespace, finding.partition)
        return placed(finding, {s.identity.node: s.fragments[name] for s in self.states if name in s.fragments})

    def read(self, name: Fragment, states: Sequence[State], copies: Sequence[Copy], placement: Placement) -> Read:
        """All rows; none where digests are enough; some, where it is looked again."""
        again = self.share.keys.get(name)
        tells = [noting(c.damaged) for c in copies]
        if again is not None:
            return Read([[_rows_of(s, name, again, tell) for s, tell in zip(states, tells, strict=True)]], again)
        if self._equal_digests(name, placement):
            self.result.counts.by_digest += 1
            return Read(())
        lower, upper = self.share.ranges.get(name, (b"", b""))
        reading = [s.reading(name, tell, lower=lower, upper=upper) for s, tell in zip(states, tells, strict=True)]

        def done() -> None:
            for state, read in zip(states, reading, strict=True):
                state.note(name, read)

        return Read(side_by_side(reading), done=done)

    def _equal_digests(self, name: Fragment, placement: Placement) -> bool:
        """Whether nobody needs to see the rows: all copies are at one counter, and their digests are equal."""
        if self.share.rules.level is not Level.DIGEST:
            return False
        if name not in self._equal:
            states = self.compared(name, placement)
            views = [s.fragments.get(name) for s in states]
            at = {(v.counter.lwm, v.counter.hwm, v.digests.get(v.counter.lwm)) if v is not None else None for v in views}
            alike = len(states) > 1 and len(at) == 1 and None not in at
            sums = {s.contents(name) for s in states} if alike else set()
            self._equal[name] = len(sums) == 1 and None not in sums
        return self._equal[name]


def _rows_of(state: State, name: Fragment, keys: Sequence[bytes], tell: Tell) -> list[Row]:
    """What a copy has of some keys, which ascend."""
    return [(key, entry) for key in keys if (entry := state.row(name, key, tell)) is not None]


def noting(damaged: dict[bytes | None, str]) -> Tell:
    """Note what is wrong with a key; the first that is said of it counts."""

    def told(key: bytes | None, what: str) -> None:
        damaged.setdefault(key, what)

    return told
