"""What a reconciliation costs: processor seconds over the directories of three nodes that were stopped.

The yardstick is the raw walk: every row of every store read and its checksum verified, and nothing compared. Rates are rows
of stores, so three for each key.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

import msgspec

from engine.errors import Error
from engine.offline.repair import set_right
from engine.offline.share import LogSince, Share
from engine.state.identity import read_identity
from engine.state.recover import recover
from engine.state.store import Entry, LayeredStore
from engine.state.store_lmdb import LmdbStore
from tools.bench.cluster import NAMESPACE, NODES, three_nodes
from tools.bench.figures import VALUE_BYTES, Measured, Miscounted, Setting, count_is
from tools.reconcile.copies import Level
from tools.reconcile.report import Report
from tools.reconcile.run import check, in_this_process
from tools.reconcile.share import check_share
from tools.reconcile.shelf import put_down_piece
from wal.ids import Fragment, partition_of

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")

AT_ONCE = 5_000
STOP_SECONDS = 120.0
SHARES = 8
TASKS = 16
DAMAGES_MAX = 1_000


async def reconciled(setting: Setting, figure: str) -> list[Measured]:
    """Check whole stores, by digests, in shares, and with findings."""
    async with stopped(setting, figure, lambda n: b"key-%08d" % n) as directories:
        return _measured(figure, directories, setting.updates)


async def skewed(setting: Setting, figure: str) -> list[Measured]:
    """One fragment has half of all keys: how much longer does the longest task take?"""
    async with stopped(setting, figure, lambda n: b"{hot}-%08d" % n if n % 2 else b"key-%08d" % n) as directories:
        times: list[float] = []

        def engine(function: Callable[[A], B], items: Sequence[A]) -> list[B]:
            found: list[B] = []
            for item in items:
                took, result = timed(partial(function, item))
                found.append(result)
                if function in {check_share, put_down_piece}:
                    times.append(took)
            return found

        whole, report = timed(lambda: check(directories, engine=in_this_process))
        is_consistent(report, setting.updates)
        is_consistent(check(directories, engine=engine, shares=TASKS), setting.updates)
        return [
            Measured(
                figure=figure,
                what=f"the longest of {len(times)} tasks where a fragment has half of all keys, of their median",
                value=round(max(times) / median(times), 3),
                unit="x",
                goal=1.5,
                at_most=True,
                counted=setting.updates * len(directories),
                seconds=round(whole, 3),
                parts={
                    "longest s": round(max(times), 3),
                    "median s": round(median(times), 3),
                    "one task s": round(whole, 3),
                },
            )
        ]


async def linear(setting: Setting, figure: str) -> list[Measured]:
    """What a row costs among so many keys, twice and four times as many."""
    costs: list[float] = []
    for times in (1, 2, 4):
        keys = setting.updates * times
        place = setting.directory / str(times)
        async with stopped(_with(setting, keys, place), figure, lambda n: b"key-%08d" % n) as directories:
            took, report = timed(partial(check, directories, engine=in_this_process))
            is_consistent(report, keys)
            costs.append(took / (keys * len(directories)))
        shutil.rmtree(place)
    return [
        Measured(
            figure=figure,
            what=f"a row among {4 * setting.updates:,} keys, of one among {setting.updates:,}",
            value=round(costs[2] / costs[0], 3),
            unit="x",
            goal=1.1,
            at_most=True,
            counted=7 * setting.updates * len(NODES),
            seconds=round(costs[2] * 4 * setting.updates * len(NODES), 3),
            parts={f"us at {n}x": round(cost * 1e6, 3) for n, cost in zip((1, 2, 4), costs, strict=True)},
        )
    ]


def _with(setting: Setting, keys: int, place: Path) -> Setting:
    place.mkdir()
    return msgspec.structs.replace(setting, updates=keys, directory=place)


@asynccontextmanager
async def stopped(setting: Setting, figure: str, key: Callable[[int], bytes]) -> AsyncIterator[list[str]]:
    """The directories of three nodes that have these keys, and have stopped."""
    keys = setting.updates
    async with three_nodes(setting, figure) as (cluster, database):
        setting.say(f"{figure}: {keys:,} keys of {VALUE_BYTES} bytes on {len(NODES)} nodes, which then stop")
        namespace = database.namespace(NAMESPACE)
        for first in range(0, keys, AT_ONCE):
            batch = range(first, min(first + AT_ONCE, keys))
            values = {key(n): n.to_bytes(4, "big") * (VALUE_BYTES // 4) for n in batch}
            await namespace.put_many(values, timeout=STOP_SECONDS)
        nodes = list(cluster.running)
        for node in nodes:
            os.kill(node.pid, signal.SIGTERM)
        for node in nodes:
            if not await node.ended(STOP_SECONDS):
                raise Error(f"{node.name} does not stop: {node.last_words()}")
        for node in nodes:
            _at_rest(node.data)
        yield [str(node.data) for node in nodes]


def _at_rest(path: Path) -> None:
    """Write the checkpoint that a node leaves out if it is told to stop while one is under way."""
    identity = read_identity(path)
    assert identity is not None, f"{path} is a node's"
    with closing(LmdbStore(path / "store")) as store:
        log = LogSince(path / "wal", Share(None, None), (identity.cluster, identity.node))
        replica = recover(LayeredStore(store), log)
        store.write(replica.begin_checkpoint(log.lsn, []))


def _measured(figure: str, directories: Sequence[str], keys: int) -> list[Measured]:
    rows = keys * len(directories)
    raw, walked = timed(lambda: sum(_walked(Path(path)) for path in directories))
    count_is(figure, rows, walked)
    whole, report = timed(lambda: check(directories, engine=in_this_process))
    is_consistent(report, keys)
    brief, by_digest = timed(lambda: check(directories, engine=in_this_process, level=Level.DIGEST))
    is_consistent(by_digest, 0)
    cut, _ = timed(lambda: check(directories, engine=in_this_process, shares=SHARES))
    damages = min(DAMAGES_MAX, keys // 10)
    _damage(Path(directories[-1]), range(0, damages * (keys // damages), keys // damages), report.summary.partitions)
    found, damaged = timed(lambda: check(directories, engine=in_this_process))
    count_is(figure, damages, damaged.summary.kept)

    def row(
        what: str, value: float, unit: str, goal: float, *, at_most: bool = False, parts: dict[str, float] | None = None
    ) -> Measured:
        return Measured(
            figure=figure,
            what=what,
            value=round(value, 3),
            unit=unit,
            goal=goal,
            at_most=at_most,
            counted=rows,
            seconds=round(whole, 3),
            parts=parts or {},
        )

    return [
        row("check of all rows", rows / whole, "rows/s", 400_000, parts={"raw walk rows/s": round(rows / raw)}),
        row("check of all rows, of the speed of a raw walk", raw / whole, "x", 0.5),
        row("--level digest where all is equal, quicker than all rows", whole / brief, "x", 20),
        row(f"{SHARES} shares, of the cost of one", cut / whole, "x", 1.1, at_most=True),
        row(f"{damages:,} findings attributed, of the cost of none", found / whole, "x", 1.1, at_most=True),
    ]


def timed(work: Callable[[], T]) -> tuple[float, T]:
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def _walked(path: Path) -> int:
    with closing(LmdbStore(path / "store", read_only=True)) as store:
        return sum(1 for (namespace, _), _, _ in store.rows() if namespace == NAMESPACE)


def is_consistent(report: Report, keys: int) -> None:
    found = report.summary.namespaces[NAMESPACE].keys
    if report.exit_code or found != keys:
        raise Miscounted(f"the check says {report.summary.verdict} of {found:,} keys: expected consistent of {keys:,}")


def _damage(path: Path, keys: Sequence[int], partitions: int) -> None:
    """Forge values on one node, of keys that were written at any time."""
    forged: dict[Fragment, dict[bytes, Entry | None]] = {}
    for n in keys:
        key = b"key-%08d" % n
        forged.setdefault((NAMESPACE, partition_of(key, partitions)), {})[key] = Entry(1, 1, b"forged")
    for fragment, rows in forged.items():
        set_right(path, fragment, rows, partitions)
