"""The first look: whose directories these are, and what each says of itself.

`survey` reads one directory, all of its log, and nothing of its rows but decision records. A log that is damaged is told,
and read around: below the checkpoint that costs its history, above it the copies end where it begins. `surveys_of` does
that for several directories by many tasks: a log is read by segments, a task each, and what they tell is put together.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from engine.errors import CorruptionError, UsageError
from engine.offline.directory import State, check_pages, read_directory
from engine.offline.live import is_live
from engine.offline.refusals import DoesNotFold
from engine.state.identity import read_identity
from rebalance.table import Topology
from tools.reconcile.copies import Level
from tools.reconcile.fetched import SEPARATOR, here, is_fetched
from tools.reconcile.logs import LogTold, Reading, Stretch, read_log, read_stretch
from tools.reconcile.summed import Summed, summed_up
from tools.reconcile.uncollected import uncollected
from wal import parts
from wal.ids import DECISIONS, Fragment, NodeId, TxId

FILE = "file://"
SHARE_WEIGHT = 400_000
"""A share has about so many updates at most: what their log says of them takes 100 MB."""
SPLITS = 64
"""Into so many ranges of keys a heavy fragment may be cut."""


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What one directory says of itself. `usage` and `problem`: why it cannot be used, or read.

    `told` is what its log says; `prepared` are transactions in doubt, by partition. `now_ms` is the time there: that of
    the machine if a node runs (`live`), else that of its newest block. `damage` is where its fold ended before the log did.

    `segments` are where those of its log begin. `weights` are by partition, in updates, and `splits` keys at equal
    distances of fragments that are heavier than a share may be. `summed` is what it says of each partition, with
    `Level.DIGEST`.
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
    damage: str = ""
    segments: list[int] = []
    weights: dict[int, int] = {}
    splits: dict[Fragment, list[bytes]] = {}
    summed: dict[int, Summed] = {}
    usage: str = ""
    problem: str = ""


class Look(msgspec.Struct, frozen=True):
    """A directory to look at. With `Level.DIGEST` its log is read from the checkpoint on only, and it is summed up.

    `shares`: into how many the work will be cut. `log`: whether its log is read as well.
    """

    path: str
    level: Level = Level.ROWS
    shares: int = 1
    log: bool = True


def surveys_of(run: Callable[..., Iterable[Any]], looks: Sequence[Look]) -> list[Survey]:
    """A first look at some directories; `run` is the engine. Their logs are cut where the work will be."""
    cut = [msgspec.structs.replace(look, log=look.shares <= 1 or look.level is Level.DIGEST) for look in looks]
    found: list[Survey] = [*run(survey, cut)]
    whole = [at for at, look in enumerate(cut) if not look.log and not found[at].problem and not found[at].usage]
    pieces = [msgspec.structs.replace(log_of(found[at]), segment=lsn) for at in whole for lsn in found[at].segments]
    read: dict[str, Reading] = {}
    for piece, reading in zip(pieces, run(read_stretch, pieces), strict=True):
        read[piece.path] = read[piece.path].then(reading) if piece.path in read else reading
    told = {at: read.get(found[at].path, Reading()).told() for at in whole}
    # Who is silent in one segment may have spoken in another one; and a log may have been trimmed meanwhile.
    doubtful = [at for at in whole if told[at].damage or any(tx.silent for tx in told[at].transactions.values())]
    told |= dict(zip(doubtful, run(read_log, [log_of(found[at]) for at in doubtful]), strict=True))
    return [with_log(one, told[at]) if at in told else one for at, one in enumerate(found)]


@uncollected
def survey(look: Look) -> Survey:
    """A first look at one directory; what is wrong with it is part of the answer."""
    try:
        if look.level is Level.DIGEST:
            try:
                return _by_digest(look)
            except DoesNotFold:
                pass  # some partition does not; who compares them finds out which
        with read_directory(here(look.path), namespaces=(DECISIONS,), tolerant=True) as state:
            found = _looked_at(look, state, state.weights())
            begin = max(1, state.checkpoint_lsn) if look.level is Level.DIGEST else 1
            return with_log(found, read_log(log_of(found, begin))) if look.log else found
    except UsageError as error:
        return Survey(path=look.path, usage=str(error))
    except CorruptionError as error:
        return unusable(look.path, str(error))


def _by_digest(look: Look) -> Survey:
    """The whole directory is folded, and summed up; the fold reads all that is wanted of the log. Raises as it does."""
    heard = Reading()
    with read_directory(here(look.path), tolerant=True, briefly=True, hear=heard.take) as state:
        found = _looked_at(look, state, {name: view.counter.lwm for name, view in state.fragments.items()})
        heard.ended_ms = state.log_ended_ms
        for finding in state.log_passed_over:
            if finding.damage:
                heard.lose(finding)
        return with_log(msgspec.structs.replace(found, summed=summed_up(state)), heard.told())


def _looked_at(look: Look, state: State, weights: Mapping[Fragment, int]) -> Survey:
    """What a directory says, beside its log."""
    live = is_live(state.path)
    heavy = -(-sum(weights.values()) // shares_of(sum(weights.values()), look.shares))
    return Survey(
        path=look.path,
        node=state.identity.node,
        cluster=state.identity.cluster,
        allocation=state.identity.allocation,
        topology=state.topology,
        checkpoint_lsn=state.checkpoint_lsn,
        lsn=state.lsn,
        time_ms=state.time_ms,
        decisions=[
            (name[1], tx, entry.value)
            for name in sorted(state.fragments)
            if name[0] == DECISIONS
            for tx, entry in state.rows(name, lambda _key, _what: None)  # told where the fragment is compared
            if entry.value
        ],
        prepared=[(n, tx) for n, view in sorted(state.partitions.items()) for tx in sorted(view.prepared)],
        live=live,
        now_ms=time.time_ns() // 1_000_000 if live else 0,
        damage=str(state.damage) if state.damage is not None else "",
        segments=parts(state.path / "wal"),
        weights=_by_partition(weights),
        splits={
            name: state.split_keys(name, SPLITS)
            for name, weight in sorted(weights.items())
            if weight > heavy and look.level is Level.ROWS
        },
    )


def shares_of(weight: int, shares: int) -> int:
    """Into how many shares so many updates are cut, if so many are wanted, or a multiple of that: they may be as many as
    work at a time, and then none of them has more to do than another one."""
    wanted = max(1, shares)
    return -(-max(wanted, -(-weight // SHARE_WEIGHT)) // wanted) * wanted


def log_of(found: Survey, from_lsn: int = 1) -> Stretch:
    """The log of a directory, up to where it was folded."""
    return Stretch(found.path, (found.cluster, found.node), found.lsn, found.live, from_lsn)


def with_log(found: Survey, told: LogTold) -> Survey:
    """The survey, with what the log tells."""
    if found.damage and not told.damage:
        told.damage.append(found.damage)
    return msgspec.structs.replace(found, told=told, now_ms=found.now_ms if found.live else told.ended_ms)


def _by_partition(weights: Mapping[Fragment, int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for (_, number), weight in weights.items():
        found[number] = found.get(number, 0) + weight
    return found


def unusable(path: str, problem: str) -> Survey:
    """What there is to say of a directory that cannot be read."""
    return Survey(path=path, node=_owner(path), problem=problem)


def pages_of(path: str) -> str:
    """What is wrong with the pages of a store, which are walked without the help of LMDB; empty if nothing is."""
    try:
        check_pages(here(path))
    except CorruptionError as error:
        return str(error)
    return ""


def _owner(path: str) -> NodeId:
    """Whose directory it is, where at least that can be read."""
    try:
        identity = read_identity(here(path))
    except (CorruptionError, UsageError, OSError):
        return ""
    return identity.node if identity is not None else ""


def named_path(given: str) -> str:
    """As `local_path`, or the URL of what this process of Spark has fetched; `tools.reconcile.fetched.here` is where."""
    return given.rstrip("/") if SEPARATOR in given and is_fetched(given) else local_path(given)


def local_path(given: str) -> str:
    """The path that a directory was named by: plain, or `file://`. Raises UsageError for another scheme."""
    if not given.isprintable():
        raise UsageError(f"{given!r} is no name that a report can carry: expected a path in UTF-8, of printable letters")
    if given.startswith(FILE):
        return os.path.abspath(given.removeprefix(FILE))
    if SEPARATOR in given:
        scheme = given.partition(SEPARATOR)[0]
        raise UsageError(f"{given}: {scheme}:// is read by Spark only: add --engine spark, or name a path, or file://")
    return os.path.abspath(given)
