"""The first look: whose directories these are, which copies ought to be equal, and what was decided.

`survey` reads one directory, all of its log, and nothing of its rows but decision records. A log that is damaged is told,
and read around: below the checkpoint that costs its history, above it the copies end where it begins. `plan` puts the
surveys side by side: it is where a set of directories is refused, and it cuts the work into shares. Each share is compared
by one call of `tools.reconcile.share.check_share`, wherever that runs; nothing is exchanged between shares.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from engine.errors import CorruptionError, UsageError
from engine.offline.directory import check_pages, read_directory
from engine.offline.live import is_live
from engine.state.identity import read_identity
from rebalance.results import ABORTED, COMMITTED
from rebalance.table import Topology
from tools.reconcile.copies import GRACE_MS, Clock, Level, Rules
from tools.reconcile.logs import LogTold, Torn, read_log, torn_ones
from tools.reconcile.transactions import Decision
from tools.reconcile.uncollected import uncollected
from wal.ids import DECISIONS, Fragment, NodeId, TxId, Version

_FILE = "file://"


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What one directory says of itself. `usage` and `problem`: why it cannot be used, or read.

    `told` is what its log says; `prepared` are transactions in doubt, by partition. `now_ms` is the time there: that of
    the machine if a node runs (`live`), else that of its newest block.
    """

    path: str
    node: NodeId = ""
    cluster: str = ""
    allocation: str = ""
    topology: Topology | None = None
    checkpoint_lsn: int = 0
    lsn: int = 0
    time_ms: int = 0
    decisions: list[tuple[int, TxId, bytes]] = []
    prepared: list[tuple[int, TxId]] = []
    told: LogTold = msgspec.field(default_factory=LogTold)
    live: bool = False
    now_ms: int = 0
    usage: str = ""
    problem: str = ""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions `first` to `last` of all directories, for one task. `limit` bounds the findings kept, 0: all.

    `ended` is how transactions that are in doubt somewhere ended elsewhere, `torn` those that ended in two ways, and
    `unheard` are nodes whose logs are damaged, or gone, and so are not asked about rows. `maps`: of each log, the LSNs and
    versions of the last committed maps. `keys`: nothing but these is looked at, which an earlier look left unsettled.
    """

    directories: dict[NodeId, str]
    first: int
    last: int
    decisions: dict[TxId, Decision]
    ended: dict[TxId, dict[int, bool]]
    torn: list[Torn]
    unheard: list[NodeId]
    rules: Rules
    limit: int
    maps: dict[NodeId, list[tuple[int, str]]] = {}
    only: list[int] = []
    keys: dict[Fragment, list[bytes]] = {}

    @property
    def partitions(self) -> Sequence[int]:
        """The partitions."""
        every = range(self.first, self.last + 1)
        return [number for number in self.only if number in every] if self.only else every


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done. `topology` is the newest committed map in any directory, None if none can be read.

    `only`: these partitions, if not all of them.
    """

    surveys: list[Survey]
    topology: Topology | None
    shares: list[Share]
    only: list[int] = []
    level: Level = Level.ROWS


class Look(msgspec.Struct, frozen=True):
    """A directory to look at. With `Level.DIGEST` its log is read from the checkpoint on only."""

    path: str
    level: Level = Level.ROWS


@uncollected
def survey(look: Look) -> Survey:
    """A first look at one directory; what is wrong with it is part of the answer."""
    path = look.path
    try:
        with read_directory(path, namespaces=(DECISIONS,), tolerant=True) as state:
            identity, live = state.identity, is_live(path)
            begin = max(1, state.checkpoint_lsn) if look.level is Level.DIGEST else 1
            told = read_log(Path(path) / "wal", (identity.cluster, identity.node), state.lsn, live=live, from_lsn=begin)
            if state.damage is not None and not told.damage:
                told.damage.append(str(state.damage))
            decisions = [
                (name[1], tx, entry.value)
                for name in sorted(state.fragments)
                for tx, entry in state.rows(name, lambda _key, _what: None)  # told where the fragment is compared
                if entry.value
            ]
            return Survey(
                path=path,
                node=state.identity.node,
                cluster=state.identity.cluster,
                allocation=state.identity.allocation,
                topology=state.topology,
                checkpoint_lsn=state.checkpoint_lsn,
                lsn=state.lsn,
                time_ms=state.time_ms,
                decisions=decisions,
                prepared=[(n, tx) for n, view in sorted(state.partitions.items()) for tx in sorted(view.prepared)],
                told=told,
                live=live,
                now_ms=time.time_ns() // 1_000_000 if live else told.ended_ms,
            )
    except UsageError as error:
        return Survey(path=path, usage=str(error))
    except CorruptionError as error:
        return unusable(path, str(error))


def unusable(path: str, problem: str) -> Survey:
    """What there is to say of a directory that cannot be read."""
    return Survey(path=path, node=_owner(path), problem=problem)


def pages_of(path: str) -> str:
    """What is wrong with the pages of a store, which are walked without the help of LMDB; empty if nothing is."""
    try:
        check_pages(Path(path))
    except CorruptionError as error:
        return str(error)
    return ""


def _owner(path: str) -> NodeId:
    """Whose directory it is, where at least that can be read."""
    try:
        identity = read_identity(Path(path))
    except (CorruptionError, UsageError, OSError):
        return ""
    return identity.node if identity is not None else ""


def local_path(given: str) -> str:
    """The path that a directory was named by: plain, or `file://`. Raises UsageError for another scheme."""
    if not given.isprintable():
        raise UsageError(f"{given!r} is no name that a report can carry: expected a path in UTF-8, of printable letters")
    if given.startswith(_FILE):
        return os.path.abspath(given.removeprefix(_FILE))
    if "://" in given:
        scheme = given.partition("://")[0]
        raise UsageError(
            f"{given}: {scheme}:// cannot be read yet: expected a path, or file://, that every executor can read"
        )
    return os.path.abspath(given)


def plan(surveys: Sequence[Survey], *, shares: int, rules: Rules, limit: int, only: Sequence[int] = ()) -> Plan:
    """Who is compared with whom, in how many shares. Raises UsageError for directories that do not belong together."""
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
    )
    torn = torn_ones({s.node: s.told for s in readable})
    ended = _ended(readable)
    decisions = decisions_in_sync(readable, topology)
    directories = {s.node: s.path for s in sorted(readable, key=lambda s: s.node)}
    count = max(1, min(shares, topology.partitions))
    bounds = [topology.partitions * at // count for at in range(count + 1)]
    return Plan(
        surveys=list(surveys),
        topology=topology,
        shares=[
            Share(
                directories=directories,
                first=first,
                last=after - 1,
                decisions=_about(decisions, range(first, after)),
                ended=ended,
                torn=[one for one in torn if first <= one.partition < after],
                unheard=[s.node for s in readable if s.told.damage or not s.told.ended_ms],
                rules=rules,
                limit=limit,
                maps={s.node: s.told.maps for s in readable},
                only=list(only),
            )
            for first, after in pairwise(bounds)
        ],
        only=list(only),
        level=rules.level,
    )


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


def _about(decisions: Mapping[TxId, Decision], partitions: range) -> dict[TxId, Decision]:
    return {
        tx: decision
        for tx, decision in decisions.items()
        if decision.partition in partitions or any(p in partitions for p in decision.participants)
    }


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
