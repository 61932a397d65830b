"""The figures of the store: what checkpoints, reads and scans cost, without a goal of their own.

Checkpoints of rows with 100-byte values over 1,024 partitions, as a node writes them; reads of single keys that are
there and that are not; scans. Then two questions that decided something: what the safe order of syncs costs, and how
long a checkpoint takes while another thread keeps the interpreter busy.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import lmdb

from engine.state.store import CheckpointImage, Entry
from engine.state.store_envelope import fragment_key, seal_rows
from engine.state.store_lmdb import LmdbStore
from tools.bench.figures import VALUE_BYTES, Measured, Setting, count_is, per_second
from wal.ids import Fragment, partition_of

PARTITIONS = 1024
NAMESPACE = "bench"
SCAN_LIMIT = 1_000
SMALL_ROWS = 100
COMMITS = 10


async def store_parts(setting: Setting, figure: str) -> list[Measured]:
    """All of them, with as many rows as there are updates in the figures of the log."""
    path, rows = setting.directory / figure, setting.updates
    path.mkdir()
    setting.say(f"{figure}: checkpoints, reads and scans of {rows:,} rows")
    with closing(LmdbStore(path / "store")) as store:
        return [
            *_writes(figure, store, rows),
            *_reads(figure, store, rows),
            *_syncs(figure, path, min(rows, 10_000)),
            *_beside_a_busy_thread(figure, store, min(rows, 10_000)),
        ]


def image_of(lsn: int, rows: int, value: bytes, *, cleared: bool = False) -> CheckpointImage:
    """A checkpoint of `rows` rows in the order in which clients wrote them: none."""
    changes: dict[Fragment, dict[bytes, Entry | None]] = {}
    for n in random.Random(lsn).sample(range(rows), rows):  # noqa: S311  # the same keys in every run
        key = _key(n)
        changes.setdefault(_fragment(key), {})[key] = Entry(1, n + 1, value)
    states: dict[Fragment, bytes | None] = dict.fromkeys(changes, b"s" * 200)
    return CheckpointImage(
        lsn, {"node": b"n" * 500}, states, {}, cleared=list(changes) if cleared else [], rows={} if cleared else changes
    )


def _key(n: int) -> bytes:
    return b"key-%08d" % n


def _fragment(key: bytes) -> Fragment:
    return (NAMESPACE, partition_of(key, PARTITIONS))


def _writes(figure: str, store: LmdbStore, rows: int) -> Iterator[Measured]:
    """Checkpoints of all rows, of a few, and the removal of all."""
    value = b"v" * VALUE_BYTES
    for what, image in (
        ("checkpoint of new rows", image_of(1, rows, value)),
        ("checkpoint of updates", image_of(2, rows, value)),
        ("clearing of rows", image_of(3, rows, value, cleared=True)),
        ("checkpoint of rows again", image_of(4, rows, value)),
    ):
        yield _timed(figure, what, rows, "rows", partial(store.write, image))
    small = [image_of(5 + n, min(SMALL_ROWS, rows), value) for n in range(COMMITS)]
    what = f"checkpoints of {SMALL_ROWS} rows"
    yield _timed(figure, what, COMMITS, "checkpoints", partial(_write_all, store, small))
    store.renew()


def _write_all(store: LmdbStore, images: list[CheckpointImage]) -> None:
    for image in images:
        store.write(image)


def _reads(figure: str, store: LmdbStore, rows: int) -> Iterator[Measured]:
    """Single keys and scans."""
    there = [(_fragment(key), key) for key in map(_key, random.Random(0).choices(range(rows), k=rows))]  # noqa: S311  # the same keys in every run
    found = 0

    def get(suffix: bytes) -> None:
        nonlocal found
        found = sum(store.get(fragment, key + suffix) is not None for fragment, key in there)

    yield _timed(figure, "get of a key that is there", rows, "reads", partial(get, b""))
    count_is("keys that are there", rows, found)
    yield _timed(figure, "get of a key that is not", rows, "reads", partial(get, b"x"))
    count_is("keys that are not there", 0, found)
    fragments = dict.fromkeys(fragment for fragment, _ in there)
    scan = partial(map, lambda fragment: store.scan(fragment, b"", SCAN_LIMIT), fragments)
    yield _timed(figure, "scan", len(fragments), "fragments", lambda: [len(page) for page in scan()])
    yield _timed(figure, "walk of all rows", rows, "rows", lambda: count_is("rows", rows, sum(1 for _ in store.rows())))


def _syncs(figure: str, directory: Path, rows: int) -> Iterator[Measured]:
    """One transaction of rows committed in the safe order, and with one sync after it."""
    for what, sync in (("commit: pages, sync, meta", True), ("commit: pages, meta, sync (unsafe)", False)):
        with lmdb.open(str(directory / f"sync-{sync}"), map_size=1 << 30, max_dbs=1, sync=sync) as env:
            db = env.open_db(b"rows")
            changes = image_of(1, rows, b"v" * VALUE_BYTES).rows
            envelopes = [list(seal_rows(fragment_key(name), dict(changes[name]), [])) for name in sorted(changes)]

            def commit(
                env: lmdb.Environment = env, db: lmdb._Database = db, rows: list[list[tuple[bytes, bytes]]] = envelopes
            ) -> None:
                for _ in range(COMMITS):
                    with env.begin(write=True) as txn, txn.cursor(db) as cursor:
                        for items in rows:
                            cursor.putmulti(items)
                    env.sync(True)

            yield _timed(figure, f"{what}, {rows:,} rows", COMMITS, "commits", commit)


def _beside_a_busy_thread(figure: str, store: LmdbStore, rows: int) -> Iterator[Measured]:
    """The same checkpoint beside a busy thread, at two switch intervals."""
    image = image_of(2000, rows, b"w" * VALUE_BYTES)
    for interval_s in (0.005, 0.0001):
        with _busy_thread(interval_s):
            what = f"checkpoint beside a busy thread, switching every {interval_s * 1000:g} ms"
            yield _timed(figure, what, rows, "rows", partial(store.write, image))


@contextmanager
def _busy_thread(interval_s: float) -> Iterator[None]:
    """A thread that never lets go of the interpreter by itself, as an event loop under full load hardly does."""
    before, stop = sys.getswitchinterval(), threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    spinner = threading.Thread(target=spin)
    sys.setswitchinterval(interval_s)
    spinner.start()
    try:
        yield
    finally:
        stop.set()
        spinner.join()
        sys.setswitchinterval(before)


def _timed(figure: str, what: str, count: int, unit: str, do: Callable[[], object]) -> Measured:
    began = time.perf_counter()
    do()
    seconds = time.perf_counter() - began
    return Measured(
        figure=figure,
        what=what,
        value=per_second(count, seconds),
        unit=f"{unit}/s",
        counted=count,
        seconds=round(seconds, 3),
    )
