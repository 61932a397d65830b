"""Sketches of directories are compared, wherever; what has to be seen is asked for, and judged like whole directories.

The judging is `tools.reconcile.task`'s: a sketch stands for a directory, with the rows of a slice instead of all. What is
told from buckets alone is that they are equal: their rows are counted as compared. A bucket has to be seen if the copies
have it otherwise, if a host marked it, or if a copy has something in it beyond the cut, which a log must settle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from engine.errors import UsageError
from engine.offline.directory import FragmentView, PartitionView
from engine.state.identity import Identity
from rebalance.table import Placement
from tools.reconcile.compare import core_of, cut_of
from tools.reconcile.copies import Copy, Rules
from tools.reconcile.counts import Tally
from tools.reconcile.evidence import PARTED, Asked, attributed
from tools.reconcile.plan import Plan, Share, plan
from tools.reconcile.report import Report, make_report
from tools.reconcile.run import FINDINGS_KEPT
from tools.reconcile.sketch import SUM_BYTES, Asking, Bucket, Leaves, Sketch, Slice, SlicedFragment, entry_of, read_file
from tools.reconcile.task import Read, ShareResult, Task
from wal.ids import Fragment, NodeId


class Sketched:
    """One sketch, as the comparison sees a directory; what a slice has is newer, and goes before it."""

    def __init__(self, sketch: Sketch, part: Slice | None) -> None:
        told = sketch.survey
        sliced = part.fragments if part is not None else []
        self.identity = Identity(format=0, cluster=told.cluster, node=told.node, allocation=told.allocation)
        self.version = max(sketch.version, part.version) if part is not None else sketch.version
        self.topology = told.topology
        self.unread = dict(sketch.unread)
        if part is not None and part.unopened:
            self.unread |= {one.of.partition: part.unopened for one in sliced}
        self.leaves: dict[Fragment, Leaves] = {one.view.name: one.leaves for one in sketch.fragments}
        self.sliced: dict[Fragment, SlicedFragment] = {one.of.name: one for one in sliced}
        self.fragments: dict[Fragment, FragmentView] = {one.view.name: one.view for one in sketch.fragments}
        # Who has nothing of a fragment sends what the log says of it, and has nothing all the same.
        views = {name: one.view for name, one in self.sliced.items()}
        self.fragments |= {name: view for name, view in views.items() if name in self.fragments or view.digests}
        self.partitions: dict[int, PartitionView] = dict(sketch.partitions)
        self.partitions |= {name[1]: one.partition for name, one in self.sliced.items()}
        self.unequal = {one.view.name: one.unequal for one in sketch.fragments if one.unequal is not None}


def check_sketches(files: Sequence[str], *, rules: Rules, limit: int = FINDINGS_KEPT) -> tuple[Report, Asking | None]:
    """Compare sketches, with the slices that are there; and what has to be seen yet. Raises UsageError."""
    sketches: list[Sketch] = []
    slices: dict[NodeId, Slice] = {}
    for path in files:
        match read_file(path):
            case Sketch() as sketch:
                sketches.append(sketch)
            case Slice() as part:
                slices[part.node] = part
            case Asking():
                raise UsageError(f"{path} has buckets that are asked for: give it to `reconcile rows` on each host")
    return compare_sketches(sketches, slices, rules=rules, limit=limit)


def compare_sketches(
    sketches: Sequence[Sketch], slices: Mapping[NodeId, Slice], *, rules: Rules, limit: int
) -> tuple[Report, Asking | None]:
    """The same, of what is there already."""
    if not sketches:
        raise UsageError("no sketch was given: expected files of `foreshore reconcile sketch`, one per node")
    planned = planned_of(sketches, 1, rules, limit)
    cluster = planned.topology.cluster if planned.topology is not None else ""
    stray = next((node for node, part in slices.items() if part.cluster != cluster), None)
    if stray is not None:
        raise UsageError(f"the rows of {stray} are of another cluster than the sketches: make them again")
    results = [judged(share, sketches, slices) for share in planned.shares]
    asked = [one for _, found in results for one in found]
    report = make_report(planned, [result for result, _ in results], limit=limit)
    return report, Asking(cluster, asked) if asked else None


def planned_of(sketches: Sequence[Sketch], shares: int, rules: Rules, limit: int) -> Plan:
    """Who compares what: whole partitions, since no fragment is cut by keys whose rows nobody has."""
    return plan([msgspec.structs.replace(s.survey, splits={}) for s in sketches], shares=shares, rules=rules, limit=limit)


def judged(share: Share, sketches: Sequence[Sketch], slices: Mapping[NodeId, Slice]) -> tuple[ShareResult, list[Bucket]]:
    """What is found in a share, and what has to be seen of it yet."""
    result = ShareResult()
    usable = sorted((s for s in sketches if not s.survey.problem), key=lambda s: s.survey.node)
    states = [Sketched(s, slices.get(s.survey.node)) for s in usable]
    task = _OfSketches(share, states, result)
    task.hear()
    for number in share.partitions:
        task.partition(number, {s.identity.node: s.unread[number] for s in states if number in s.unread})
    found = attributed(task.findings, states, share.maps, _traced)
    result.keep(map(msgspec.json.encode, found))
    return result, task.asked()


class _OfSketches(Task[Sketched]):
    """A comparison of sketches."""

    def __init__(self, share: Share, states: Sequence[Sketched], result: ShareResult) -> None:
        super().__init__(share, states, result)
        self._asked: dict[Fragment, Bucket] = {}

    def asked(self) -> list[Bucket]:
        """What has to be seen, and was not; where histories part, their records as well."""
        for finding in self.findings:
            name = (finding.namespace, finding.partition)
            if finding.kind not in PARTED:
                continue
            run = (finding.counters[0], finding.counters[-1])
            have = [s.sliced[name].of.runs for s in self.states if name in s.sliced]
            if not have or any(run not in runs for runs in have):
                known = self._asked.get(name) or next(
                    (s.sliced[name].of for s in self.states if name in s.sliced), Bucket(*name, 0, [], [], run[0] - 1)
                )
                self._asked[name] = msgspec.structs.replace(known, runs=sorted({*known.runs, run}))
        return [self._asked[name] for name in sorted(self._asked)]

    def hear(self) -> None:
        """What a log says of the rows that were sliced: that of the copy whose log reaches furthest back."""
        if self.topology is None:
            return
        for number, namespaces in sorted(self.names.items()):
            placement = self.topology.placements[number]
            for namespace in namespaces:
                name = (namespace, number)
                copies = [self.copy(s, name, self.standing(s, placement)) for s in self.compared(name, placement)]
                heard = [c for c in core_of(copies) if c.node not in self.share.unheard] if copies else []
                if heard:
                    witness = min(heard, key=lambda c: c.view.history_from).node
                    state = next(s for s in self.states if s.identity.node == witness)
                    heard_of = state.sliced[name].heard if name in state.sliced else None
                    if heard_of is not None:
                        self.said[name] = (witness, heard_of.rows())

    def read(self, name: Fragment, states: Sequence[Sketched], copies: Sequence[Copy], placement: Placement) -> Read:
        """The rows that were sliced; what else has to be seen is asked for."""
        there = [s.leaves[name] for s in states if name in s.leaves]
        depth = min((one.depth for one in there), default=0)
        leaves = [one.at(depth) for one in there]
        if len(there) < len(states):
            leaves.append(_nothing(depth))
        wanted = _wanted(leaves, cut_of(core_of(copies)))
        sliced = [s.sliced.get(name) for s in states]
        have = [one for one in sliced if one is not None]
        seen = set.intersection(*(set(one.of.buckets) for one in have if one.of.depth == depth)) if have else set[int]()
        if wanted - seen or any(one is None and name in s.leaves for one, s in zip(sliced, states, strict=True) if wanted):
            self._asked[name] = Bucket(*name, depth, sorted(wanted | seen), [], cut_of(core_of(copies)))
            self.result.counts.unseen += len(wanted)
            have, seen = [], wanted
        live = sum(count for bucket, count in enumerate(leaves[0].live) if bucket not in seen)
        self.result.counts.namespaces.setdefault(name[0], Tally()).keys += live
        if not have:
            return Read((), [])
        if any(one.heard is None for one in have):  # what a log has against its own store, no row tells
            self.result.counts.unseen += len({bucket for leaf in leaves for bucket in leaf.odd})
        runs = [[entry_of(row) for row in one.rows] if one is not None else [] for one in sliced]
        for one, copy in zip(sliced, copies, strict=True):
            copy.damaged.update(one.damaged if one is not None else ())
        told = [one.heard.said for one in have if one.heard is not None]
        keys = {key for run in runs for key, _ in run}.union(*told)
        return Read([runs], sorted(keys))


def _nothing(depth: int) -> Leaves:
    """Of a copy that has no row."""
    return Leaves(depth, bytes(SUM_BYTES << depth), [0] * (1 << depth), [0] * (1 << depth), [])


def _wanted(leaves: Sequence[Leaves], cut: int) -> set[int]:
    """The buckets that have to be seen, of leaves of one depth."""
    return {
        bucket
        for bucket in range(1 << leaves[0].depth)
        if len({one.sum_of(bucket) for one in leaves}) > 1
        or any(one.top[bucket] > cut for one in leaves)
        or any(bucket in one.odd for one in leaves)
    }


def _traced(state: Sketched, asked: Mapping[Fragment, Asked]) -> None:
    """What is asked of a node's log, as far as it was sliced."""
    for name, one in asked.items():
        part = state.sliced.get(name)
        if part is not None:
            one.newest |= {trace.key: trace for trace in part.newest if trace.key in one.keys}
            wanted = partial(_within, one.runs)
            one.counters |= {trace.counter: trace for trace in part.counters if wanted(trace.counter)}


def _within(runs: Sequence[tuple[int, int]], counter: int) -> bool:
    return any(first <= counter <= last for first, last in runs)
