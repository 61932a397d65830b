"""The surveys side by side: which copies ought to be equal, what was decided, and who compares what.

Here a set of directories is refused, and the work cut into shares of about one weight: runs of partitions, and of a
fragment that is heavier than a share, ranges of its keys. Each share is compared by one call of
`tools.reconcile.share.check_share`, wherever that runs; nothing is exchanged between shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from engine.errors import UsageError
from rebalance.results import ABORTED, COMMITTED
from rebalance.table import Topology
from tools.reconcile.copies import GRACE_MS, Clock, Level, Rules
from tools.reconcile.counts import Counts
from tools.reconcile.logs import Torn, torn_ones
from tools.reconcile.quiet import quiet_ones
from tools.reconcile.shelf import Piece
from tools.reconcile.survey import Survey, shares_of
from tools.reconcile.transactions import Decision
from wal.ids import Fragment, NodeId, TxId, Version

PARTITION_WEIGHT = 32
"""What a partition costs by itself, in updates."""

Range = tuple[bytes, bytes]
"""Keys from the first one on to below the second; an empty one is no bound."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Some partitions of all directories, for one task. `limit` bounds the findings kept, 0: all.

    `ended` is how transactions that are in doubt somewhere ended elsewhere, `torn` those that ended in two ways, and
    `unheard` are nodes whose logs are damaged, or gone, and so are not asked about rows. `at_rest` are those that do not
    run and whose checkpoint has all of their log. `maps`: of each log, the LSNs and versions of the last committed maps,
    and `ends` where it ends, 0 where it goes on.
    `keys`: nothing but these is looked at, which an earlier look left unsettled.
    `ranges`: of these fragments only these rows. The range that has no lower bound goes with all else that there is to say
    of its partition; a share with another one has nothing but these rows (`piece`). `shelf` is a folder where a log lies by
    partition once a share has asked it; empty: nobody asks twice.
    """

    directories: dict[NodeId, str]
    partitions: list[int]
    decisions: dict[TxId, Decision]
    ended: dict[TxId, dict[int, bool]]
    torn: list[Torn]
    unheard: list[NodeId]
    at_rest: list[NodeId] = []
    rules: Rules
    limit: int
    maps: dict[NodeId, list[tuple[int, str]]] = {}
    ends: dict[NodeId, int] = {}
    keys: dict[Fragment, list[bytes]] = {}
    ranges: dict[Fragment, Range] = {}
    shelf: str = ""

    @property
    def piece(self) -> Fragment | None:
        """The fragment of which this share has some rows, and nothing else."""
        return next((name for name, (lower, _) in self.ranges.items() if lower), None)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done. `topology` is the newest committed map in any directory, None if none can be read.

    `only`: these partitions, if not all of them. `quiet` counts what needs no comparison.
    """

    surveys: list[Survey]
    topology: Topology | None
    shares: list[Share]
    only: list[int] = []
    level: Level = Level.ROWS
    quiet: Counts = msgspec.field(default_factory=Counts)


def plan(surveys: Sequence[Survey], *, shares: int, rules: Rules, limit: int, only: Sequence[int] = ()) -> Plan:
    """Who is compared with whom, in about so many shares. Raises UsageError for directories that do not belong together."""
    for found in surveys:
        if found.usage:
            raise UsageError(found.usage)
    readable = [s for s in surveys if not s.problem]
    _check_same_cluster(readable)
    topology = max((s.topology for s in readable if s.topology is not None), key=_version, default=None)
    if topology is None:
        if readable:
            raise UsageError(f"{readable[0].path} belongs to no cluster yet, and neither does another directory given")
        return Plan(surveys=list(surveys), topology=None, shares=[])
    rules = msgspec.structs.replace(
        rules,
        clocks={s.node: Clock(s.told.ended_ms, s.now_ms) for s in readable},
        grace_ms=rules.grace_ms if rules.grace_ms >= 0 else GRACE_MS * any(s.live for s in surveys),
        partitions=topology.partitions,
        firsts={name: topology.first_of(name) for name in topology.namespaces} if topology.groups else {},
    )
    torn = torn_ones({s.node: s.told for s in readable})
    decisions = decisions_in_sync(readable, topology)
    chosen = frozenset(only)
    numbers = [number for number in range(len(topology.placements)) if not only or number in chosen]
    counts = Counts()
    if rules.level is Level.DIGEST:
        quiet, counts = quiet_ones(readable, topology, numbers, decisions, {one.partition for one in torn})
        numbers = sorted(set(numbers) - set(quiet))
    whole = Share(
        directories={s.node: s.path for s in sorted(readable, key=lambda s: s.node)},
        partitions=numbers,
        decisions=decisions,
        ended=_ended(readable),
        torn=torn,
        unheard=[s.node for s in readable if s.told.damage or not s.told.ended_ms],
        at_rest=[s.node for s in readable if not rules.grace_ms and s.lsn == s.checkpoint_lsn and not s.told.damage],
        rules=rules,
        limit=limit,
        maps={s.node: s.told.maps for s in readable},
        ends={s.node: 0 if s.live else s.lsn for s in readable},
    )
    return Plan(
        surveys=list(surveys),
        topology=topology,
        shares=cut(whole, readable, shares),
        only=list(only),
        level=rules.level,
        quiet=counts,
    )


# Shares.


def cut(whole: Share, surveys: Sequence[Survey], shares: int) -> list[Share]:
    """The work in about so many shares of about one weight, or in more, in the order of the partitions."""
    weights = dict.fromkeys(whole.partitions, PARTITION_WEIGHT)
    splits: dict[Fragment, list[bytes]] = {}
    for survey in surveys:
        for number, weight in survey.weights.items():
            if number in weights:
                weights[number] = max(weights[number], PARTITION_WEIGHT + weight)
        splits = {name: keys for name, keys in survey.splits.items() if name[1] in weights} | splits
    total = sum(weights.values())
    target = max(1, -(-total // shares_of(total, shares)))
    found: list[Share] = []
    heavy = {name[1]: name for name in splits if weights[name[1]] > target}
    run, load = list[int](), 0
    for number in whole.partitions:
        weight = weights[number]
        if number in heavy or (run and load + weight // 2 > target):
            found += _of_run(whole, run)
            run, load = [], 0
        if number in heavy:
            found += _of_ranges(whole, heavy[number], splits[heavy[number]], round(weight / target))
        else:
            run.append(number)
            load += weight
    return [*found, *_of_run(whole, run)]


def _of_run(whole: Share, numbers: Sequence[int]) -> list[Share]:
    """The share of these partitions; none of none."""
    if not numbers:
        return []
    mine = frozenset(numbers)
    return [
        msgspec.structs.replace(
            whole,
            partitions=list(numbers),
            decisions={
                tx: one
                for tx, one in whole.decisions.items()
                if one.partition in mine or not mine.isdisjoint(one.participants)
            },
            torn=[one for one in whole.torn if one.partition in mine],
        )
    ]


def _of_ranges(whole: Share, name: Fragment, splits: Sequence[bytes], pieces: int) -> list[Share]:
    """The shares of one partition, of which one fragment is cut into ranges of keys."""
    (all_of_it,) = _of_run(whole, [name[1]])
    count = min(max(1, pieces), len(splits) + 1)
    places = [len(splits) * at // count for at in range(1, count)]
    bounds = [b"", *dict.fromkeys(splits[at] for at in places), b""]
    return [msgspec.structs.replace(all_of_it, ranges={name: bound}) for bound in pairwise(bounds)]


def pieces_of(planned: Plan, shelf: str) -> list[Piece]:
    """The segments of the logs that will most likely be asked: of each partition one, which reaches far back.

    A share that asks another one puts that down itself. By digests mostly none is asked.
    """
    if planned.topology is None or planned.level is Level.DIGEST:
        return []
    unheard = {node for share in planned.shares[:1] for node in share.unheard}
    readable = {s.node: s for s in planned.surveys if not s.problem and s.node not in unheard}
    asked: dict[NodeId, None] = {}
    for number in dict.fromkeys(number for share in planned.shares for number in share.partitions):
        copies = [readable[node] for node in planned.topology.placements[number].in_sync if node in readable]
        if copies:
            asked[min(copies, key=lambda s: (s.segments[:1] != [1], s.node)).node] = None
    return [Piece(readable[node].path, node, shelf, lsn) for node in sorted(asked) for lsn in readable[node].segments]


# What belongs together.


def _check_same_cluster(surveys: Sequence[Survey]) -> None:
    seen: dict[NodeId, Survey] = {}
    ids: dict[str, Survey] = {}
    for found in surveys:
        first = surveys[0]
        if found.cluster != first.cluster:
            raise UsageError(
                f"{found.path} belongs to cluster {found.cluster!r}, {first.path} to {first.cluster!r}: "
                "name the directories of one cluster"
            )
        if found.node in seen:
            raise UsageError(
                f"{seen[found.node].path} and {found.path} both belong to node {found.node!r}: name one directory per node"
            )
        seen[found.node] = found
        if found.topology is not None:
            ids.setdefault(found.topology.cluster, found)
    if len(ids) > 1:
        one, other, *_ = ids.values()
        raise UsageError(
            f"{one.path} and {other.path} belong to two clusters that have the same name {one.cluster!r}: "
            "name the directories of one"
        )


def decisions_in_sync(surveys: Sequence[Survey], topology: Topology) -> dict[TxId, Decision]:
    """The decisions that all in-sync copies of their partition hold, of those copies that can be read."""
    held: dict[NodeId, dict[tuple[int, TxId], bytes]] = {
        s.node: {(number, tx): value for number, tx, value in s.decisions}
        for s in surveys
        if topology.allocations.get(s.node) == s.allocation
    }
    found: dict[TxId, Decision] = {}
    for (number, tx), value in {at: value for rows in held.values() for at, value in rows.items()}.items():
        copies = [held[node] for node in topology.placements[number].in_sync if node in held]
        if copies and all(rows.get((number, tx)) == value for rows in copies) and value[0] in {COMMITTED, ABORTED}:
            participants = [int.from_bytes(value[at : at + 2], "big") for at in range(1, len(value), 2)]
            found[tx] = Decision(value[0], number, participants)
    return found


def _ended(surveys: Sequence[Survey]) -> dict[TxId, dict[int, bool]]:
    """How transactions that are in doubt anywhere ended elsewhere, by partition."""
    open_ones = {tx for s in surveys for _, tx in s.prepared}
    ended: dict[TxId, dict[int, bool]] = {}
    for survey in surveys:
        for tx in sorted(open_ones & survey.told.transactions.keys()):
            for number, commit in sorted(survey.told.transactions[tx].outcomes.items()):
                ended.setdefault(tx, {})[number] = commit or ended.get(tx, {}).get(number, False)
    return ended


def _version(topology: Topology) -> Version:
    return topology.version
