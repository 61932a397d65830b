"""What the store can do on this machine: `python -m tests.bench.store_bench [--rows N] [--directory PATH]`.

Checkpoints of rows with 100-byte values over 1,024 partitions, as a node writes them; reads of single keys that are
there and that are not, beside LMDB's own, which checks nothing; scans. Then two questions that decided something: what
the safe order of syncs costs, and how long a checkpoint takes while another thread keeps the interpreter busy.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import lmdb

from engine.store import CheckpointImage, Entry
from engine.store_envelope import fragment_key, seal_rows
from engine.store_lmdb import LmdbStore
from tests.bench.wal_bench import Measured
from wal.ids import Fragment, slot_of

VALUE_BYTES = 100
PARTITIONS = 1024
READS = 100_000
SCAN_LIMIT = 1_000


def image_of(lsn: int, rows: int, value: bytes, *, cleared: bool = False) -> CheckpointImage:
    """A checkpoint of `rows` rows in the order in which clients wrote them: none."""
    changes: dict[Fragment, dict[bytes, Entry | None]] = {}
    for n in random.Random(lsn).sample(range(rows), rows):
        key = b"key-%08d" % n
        fragment = ("acc", slot_of(key) * PARTITIONS // 16384)
        changes.setdefault(fragment, {})[key] = Entry(1, n + 1, value)
    states: dict[Fragment, bytes | None] = dict.fromkeys(changes, b"s" * 200)
    return CheckpointImage(
        lsn, {"node": b"n" * 500}, states, {}, list(changes) if cleared else [], {} if cleared else changes
    )


def timed(name: str, amount: int, unit: str, do: Callable[[], object]) -> Measured:
    """How long `do` takes."""
    begun = time.perf_counter()
    do()
    return Measured(name, amount, unit, time.perf_counter() - begun)


def write_all(store: LmdbStore, images: list[CheckpointImage]) -> None:
    """One checkpoint after the other."""
    for image in images:
        store.write(image)


def measure_writes(store: LmdbStore, rows: int) -> Iterator[Measured]:
    """Checkpoints of all rows, of a few, and the removal of all."""
    value = b"v" * VALUE_BYTES
    for name, image in (
        (f"checkpoint of {rows:,} new rows", image_of(1, rows, value)),
        (f"checkpoint of {rows:,} updates", image_of(2, rows, value)),
        (f"clearing of {rows:,} rows", image_of(3, rows, value, cleared=True)),
        (f"checkpoint of {rows:,} rows again", image_of(4, rows, value)),
    ):
        yield timed(name, rows, "rows", partial(store.write, image))
    small = [image_of(5 + n, 100, value) for n in range(100)]
    yield timed("checkpoints of 100 rows", len(small), "checkpoints", partial(write_all, store, small))
    store.renew()


def measure_reads(store: LmdbStore, rows: int) -> Iterator[Measured]:
    """Single keys and scans."""
    keys = [b"key-%08d" % random.Random(n).randrange(rows) for n in range(READS)]
    there = [(("acc", slot_of(key) * PARTITIONS // 16384), key) for key in keys]
    absent = [(fragment, key + b"x") for fragment, key in there]
    raw = [fragment_key(fragment) + key for fragment, key in there]
    assert all(store.get(*name) is not None for name in there)
    bare = store._txn.get
    yield timed("get, LMDB alone, unchecked", READS, "reads", lambda: [bare(key) for key in raw])
    yield timed("get of a key that is there", READS, "reads", lambda: [store.get(*name) for name in there])
    yield timed("get of a key that is not", READS, "reads", lambda: [store.get(*name) for name in absent])
    fragments = {fragment for fragment, _ in there}
    yield timed("scan", rows, "rows", lambda: [store.scan(fragment, b"", SCAN_LIMIT) for fragment in fragments])
    yield timed("walk of all rows", rows, "rows", lambda: sum(1 for _ in store.rows()))


def measure_sync(directory: Path, rows: int) -> Iterator[Measured]:
    """One transaction of rows committed in the safe order, and with one sync after it."""
    for name, sync in (("pages, sync, meta", True), ("pages, meta, sync: unsafe", False)):
        with lmdb.open(str(directory / f"sync-{sync}"), map_size=1 << 30, max_dbs=1, sync=sync) as env:
            db = env.open_db(b"rows")
            for size in (100, rows):
                envelopes = [
                    list(seal_rows(fragment_key(fragment), changes, []))
                    for fragment, changes in sorted(image_of(1, size, b"v" * VALUE_BYTES).rows.items())
                ]
                begun = time.perf_counter()
                for _ in range(10):
                    with env.begin(write=True) as txn, txn.cursor(db) as cursor:
                        for items in envelopes:
                            cursor.putmulti(items)
                    env.sync(True)
                yield Measured(f"{name}, {size:,} rows", 10, "commits", time.perf_counter() - begun)


@contextmanager
def busy_thread(interval_s: float) -> Iterator[None]:
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


def measure_contention(store: LmdbStore, rows: int) -> Iterator[Measured]:
    """The same checkpoint beside a busy thread, at two switch intervals."""
    image = image_of(2000, rows, b"w" * VALUE_BYTES)
    for interval_s in (0.005, 0.0001):
        with busy_thread(interval_s):
            name = f"checkpoint, busy thread, {interval_s * 1000:g} ms"
            yield timed(name, rows, "rows", partial(store.write, image))


def main() -> None:
    """Measure, and print one line for each figure."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--rows", type=int, default=100_000)
    arguments.add_argument("--directory", type=Path, default=None)
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.directory) as directory:
        store = LmdbStore(Path(directory) / "store")
        for measured in measure_writes(store, chosen.rows):
            print(measured, flush=True)
        for measured in measure_reads(store, chosen.rows):
            print(measured, flush=True)
        for measured in measure_sync(Path(directory), chosen.rows):
            print(measured, flush=True)
        for measured in measure_contention(store, min(chosen.rows, 20_000)):
            print(measured, flush=True)
        size = (Path(directory) / "store" / "data.mdb").stat().st_size
        print(f"{'file':<34} {size / chosen.rows:>14,.0f} bytes/row", flush=True)
        store.close()


if __name__ == "__main__":
    main()
