"""What a reconciliation says in the end: findings as JSON Lines, and one summary. The same input gives the same bytes.

Nothing in a report tells how it was made: no time, no duration, no engine, no number of tasks. `findings.jsonl` is in
the order of partition, namespace, key; unreadable directories come first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import chain, islice
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from engine.errors import UsageError
from rebalance.contents import MASK
from tools.outputs import put_files
from tools.reconcile.aside import Aside, Lines, lines_in
from tools.reconcile.copies import Level
from tools.reconcile.counts import Counts, Tally
from tools.reconcile.findings import KINDS, Finding, Kind, place_of
from tools.reconcile.plan import Plan
from tools.reconcile.task import PartSum, ShareResult, contents_mismatch
from wal.ids import Fragment, Namespace, NodeId

FORMAT = 1
FINDINGS, PAGE, SUMMARY = "findings.jsonl", "report.html", "summary.json"
LOST_SHOWN = 8
SHOWN = 50
"""So many findings are shown to a person; a report in a directory, and plain lines, have them all."""


class ExitCode(IntEnum):
    """What a program learns. A difference is one whatever else could not be read, so it goes first."""

    CONSISTENT = 0
    DIFFERENCES = 1
    USAGE = 2
    INCOMPLETE = 3
    INTERRUPTED = 130


class Directory(msgspec.Struct, frozen=True, kw_only=True):
    """One input. `readable` is whether it could be read at all."""

    path: str
    node: NodeId
    readable: bool
    checkpoint_lsn: int
    lsn: int
    topology: str


class Apart(msgspec.Struct, frozen=True, kw_only=True):
    """Copies that need not have all: MOVING, LEFTOVER, OTHER-DISK, compared as far as they reach; LOADING, not compared."""

    node: NodeId
    state: str
    fragments: int
    behind: int  # counters, to the cut of those that were compared


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """A partition without an in-sync copy: since which version, as far as any log reaches, and who had it then."""

    partition: int
    since: str
    in_sync: list[NodeId]


class Unsettled(msgspec.Struct, frozen=True, kw_only=True):
    """What was on its way, or written while the directories were read: neither equal nor different."""

    keys: int
    gaps: int
    transactions: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The whole in one object. `findings` counts all of them, by kind; `kept` are those in the report.

    `only` are the partitions that were compared, if that was not all of them. `by_digest` are fragments whose rows were not
    read, because all copies' digests agree, which is what `level` allows. `alone` are fragments that were compared with
    nothing, because one copy is here; `single` those of them that are to have no other.
    """

    format: int = FORMAT
    verdict: str
    exit_code: int
    cluster: str
    topology: str
    partitions: int
    directories: list[Directory]
    fragments: int
    copies: int
    keys: int
    alone: int
    unsettled: Unsettled
    findings: dict[str, int]
    kept: int
    namespaces: dict[Namespace, Tally]
    copies_known: int
    lost: list[Lost]
    apart: list[Apart]
    absent: dict[NodeId, int]
    incomplete: list[str]
    cluster_id: str = ""
    only: list[int] = []
    by_digest: int = 0
    level: Level = Level.ROWS
    single: int = 0


class Report(msgspec.Struct, frozen=True):
    """Findings as JSON, one a line, and the summary."""

    findings: Lines
    summary: Summary

    @property
    def exit_code(self) -> ExitCode:
        """What the program says."""
        return ExitCode(self.summary.exit_code)

    def decoded(self) -> Iterator[Finding]:
        """The findings as values."""
        for line in self.findings:
            yield msgspec.json.decode(line, type=Finding)

    def findings_bytes(self) -> bytes:
        """The file of findings, all of it at once."""
        return b"".join(self.findings.chunks())

    def summary_bytes(self) -> bytes:
        """The file of the summary."""
        return msgspec.json.format(msgspec.json.encode(self.summary), indent=2) + b"\n"

    def write(self, directory: Path, page: bytes) -> None:
        """Put the files into a directory, made if it is not there. The summary is last: where it is, all is."""
        try:
            put_files(directory, {FINDINGS: self.findings.chunks(), PAGE: [page], SUMMARY: [self.summary_bytes()]})
        except OSError as error:
            raise UsageError(f"cannot write the report to {directory}: {error.strerror}; name another --out") from error


def read_report(directory: Path) -> Report:
    """What `write` left. Raises UsageError."""
    try:
        summary = msgspec.json.decode((directory / SUMMARY).read_bytes(), type=Summary)
        lines = lines_in(directory / FINDINGS)
        for line in lines:
            msgspec.json.decode(line, type=Finding)
    except OSError as error:
        raise UsageError(f"{directory} is no report: {error.strerror}; name the directory of `check --out`") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{directory} is no report of this version: {error}; check again, with --out") from error
    return Report(lines, summary)


def make_report(plan: Plan, results: Iterable[ShareResult], *, limit: int, aside: Aside | None = None) -> Report:
    """Put together what came of the shares; `aside` has what was taken of their findings before."""
    aside = aside or Aside(limit)
    counts, sums = Counts(), list[PartSum]()
    counts.add(plan.quiet)
    for result in aside.take(results):
        counts.add(result.counts)
        sums += result.sums
    unequal = [*_unequal(Counter(name for share in plan.shares for name in share.ranges), sums)]
    for finding in unequal:
        counts.namespaces[finding.namespace].findings += 1
    whole = [*_of_directories(plan)]
    for finding in (*unequal, *whole):
        counts.kinds[finding.kind] = counts.kinds.get(finding.kind, 0) + 1
        counts.incomplete += finding.incomplete
    aside.keep(iter(sorted(map(msgspec.json.encode, unequal), key=place_of)))
    lines = Lines()
    lines.add(islice(chain(map(msgspec.json.encode, whole), aside.merged()), limit or None))
    return Report(lines, _summary(plan, counts, kept=len(lines)))


def _of_directories(plan: Plan) -> Iterator[Finding]:
    """The directories that cannot be read, or whose logs cannot."""
    for survey in plan.surveys:
        for problem in [survey.problem] if survey.problem else survey.told.damage[:1]:
            yield Finding(Kind.UNREADABLE, on=[survey.node or survey.path], detail=problem)


def _unequal(cut: Mapping[Fragment, int], sums: Sequence[PartSum]) -> Iterator[Finding]:
    """The copies of fragments, cut into so many ranges, whose rows add up to something else than was written.

    As where one is not cut, nothing is said of a copy of which some row could not be believed.
    """
    copies: dict[tuple[Fragment, NodeId], list[PartSum]] = {}
    for one in sums:
        copies.setdefault(((one.namespace, one.partition), one.node), []).append(one)
    for (name, node), parts in sorted(copies.items()):
        found = sum(one.found for one in parts) & MASK
        if len(parts) == cut[name] and found != parts[0].written:
            yield contents_mismatch(name, node, parts[0].written, found)


def _fragments(counts: Counts) -> int:
    return sum(tally.fragments for tally in counts.namespaces.values())


def _summary(plan: Plan, counts: Counts, *, kept: int) -> Summary:
    """The verdict, and what it rests on; `kept` findings are in the report."""
    incomplete = _incomplete(plan, counts)
    found = sum(counts.kinds.values())
    code = ExitCode.DIFFERENCES if found > counts.incomplete else ExitCode.INCOMPLETE if incomplete else ExitCode.CONSISTENT
    topology = plan.topology
    return Summary(
        verdict=code.name.lower(),
        exit_code=code,
        cluster=next((s.cluster for s in plan.surveys if s.cluster), ""),
        topology=str(topology.version) if topology else "",
        partitions=len(topology.placements) if topology else 0,
        directories=[
            Directory(
                path=s.path,
                node=s.node,
                readable=not s.problem,
                checkpoint_lsn=s.checkpoint_lsn,
                lsn=s.lsn,
                topology=str(s.topology.version) if s.topology else "",
            )
            for s in plan.surveys
        ],
        fragments=_fragments(counts),
        copies=counts.copies,
        keys=sum(t.keys for t in counts.namespaces.values()),
        alone=counts.alone,
        unsettled=Unsettled(
            keys=counts.unsettled_keys, gaps=counts.unsettled_gaps, transactions=counts.transactions_under_way
        ),
        findings={kind: counts.kinds[kind] for kind in KINDS if kind in counts.kinds},
        kept=kept,
        namespaces=dict(sorted(counts.namespaces.items())),
        apart=[
            Apart(node=name.partition(" ")[0], state=name.partition(" ")[2], fragments=fragments, behind=behind)
            for name, (fragments, behind) in sorted(counts.apart.items())
        ],
        copies_known=counts.copies_known,
        lost=_lost(plan, counts),
        absent=dict(sorted(counts.absent.items())),
        incomplete=incomplete,
        cluster_id=topology.cluster if topology else "",
        only=plan.only,
        by_digest=counts.by_digest,
        level=plan.level,
        single=counts.single,
    )


def _lost(plan: Plan, counts: Counts) -> list[Lost]:
    since: dict[int, str] = {}
    for survey in sorted(plan.surveys, key=lambda s: s.node):
        if survey.topology == plan.topology:
            since |= survey.told.lost_since
    return [
        Lost(partition=p, since=since.get(p, ""), in_sync=list(plan.topology.placements[p].in_sync))
        for p in sorted(counts.lost)
        if plan.topology is not None
    ]


def _incomplete(plan: Plan, counts: Counts) -> list[str]:
    """Why the answer is not about everything, in sentences."""
    reasons = [f"{s.path} cannot be read" for s in plan.surveys if s.problem]
    reasons += [
        f"the log of {s.path} is damaged: its copies are compared as they were before LSN {s.lsn + 1}"
        if s.damage
        else f"the log of {s.path} is damaged below its checkpoint: its copies are compared as they are, but not with that"
        for s in plan.surveys
        if s.told.damage and not s.problem
    ]
    if counts.incomplete > len(reasons):
        reasons.append(f"{counts.incomplete - len(reasons)} copies cannot be read in part")
    reasons += [
        f"partition {one.partition} is LOST since version {one.since}, when {','.join(one.in_sync)} had it in sync"
        for one in _lost(plan, counts)[:LOST_SHOWN]
    ]
    if len(counts.lost) > LOST_SHOWN:
        reasons.append(f"and {len(counts.lost) - LOST_SHOWN} more partitions are LOST")
    if counts.stale_keys:
        reasons.append(f"{counts.stale_keys} keys could not be compared, and nothing was on its way that explains it")
    if counts.unseen:
        reasons.append(
            f"{counts.unseen} buckets have to be seen, and were not: `reconcile rows DIR --buckets FILE` on each host, "
            "then check with what it writes as well"
        )
    if alone := counts.alone if counts.alone == _fragments(counts) else counts.alone - counts.single:
        reasons.append(f"{alone} fragments have one copy here: it was read, and compared with nothing")
    reasons += [
        f"node {node} is in sync for {partitions} partitions, and no directory of it was read for them"
        for node, partitions in sorted(counts.absent.items())
    ]
    return reasons


# For the terminal.


def lines_of(report: Report) -> Iterator[str]:
    """The report as plain lines: findings, then what was looked at, then the verdict."""
    for finding in report.decoded():
        yield str(finding)
    yield from facts_of(report.summary)


def facts_of(summary: Summary) -> Iterator[str]:
    """What was looked at, what was not, and the verdict."""
    yield (
        f"compared fragments={summary.fragments} copies={summary.copies} of {summary.copies_known} "
        f"keys={summary.keys} of {summary.keys + summary.unsettled.keys} "
        f"directories={len(summary.directories)} topology={summary.topology or '-'}"
    )
    if summary.level is Level.DIGEST:
        yield (
            f"level digest: the rows of {summary.by_digest} of {summary.fragments} fragments were not read, "
            "nor the logs below the checkpoints"
        )
    if summary.only:
        yield f"only partitions={len(summary.only)} of {summary.partitions}"
    unsettled = summary.unsettled
    if unsettled.keys or unsettled.gaps or unsettled.transactions:
        yield f"unsettled keys={unsettled.keys} gaps={unsettled.gaps} transactions={unsettled.transactions}"
    for apart in summary.apart:
        yield f"apart node={apart.node} state={apart.state} fragments={apart.fragments} behind={apart.behind}"
    if summary.single:
        yield f"single fragments={summary.single}: they are to have one copy, which was read, and compared with nothing"
    for reason in summary.incomplete:
        yield f"incomplete {reason}"
    if not (summary.fragments or summary.incomplete or summary.only):
        yield f"nothing was ever written in cluster {summary.cluster}: is it the one that was meant?"
    total = sum(summary.findings.values())
    counted = " ".join(f"{kind}={count}" for kind, count in summary.findings.items())
    yield f"{summary.verdict} findings={total}" + (f" {counted}" if counted else "")


def show(report: Report, console: Console) -> None:
    """The report for a person: a table of findings, and the facts."""
    if report.findings:
        table = Table("kind", "where", "key", "on", "what the copies have")
        for at, finding in enumerate(report.decoded()):
            if at == SHOWN:
                break
            table.add_row(*map(escape, _cells(finding)))
        console.print(table)
        if len(report.findings) > SHOWN:
            console.print(f"... and {len(report.findings) - SHOWN} more: see them with --out DIR, or in a pipe")
    for line in facts_of(report.summary):
        console.print(line, highlight=False, markup=False)


def _cells(finding: Finding) -> tuple[str, ...]:
    head = finding.kind, finding.where, finding.key or "", ", ".join(finding.on)
    return (*head, finding.account)
