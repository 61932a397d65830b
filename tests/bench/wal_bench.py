"""What the log can do on this machine: `python -m tests.bench.wal_bench [--updates N] [--directory PATH]`.

Blocks of 50 one-key updates with 100-byte values over 1,024 partitions, as a busy turn of a node appends them; appended
with and without a sync per block, replayed, and read as history by a copy that misses everything, or the last percent.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from wal import DirectoryDisk, Log, LogSettings, PartitionCounter, Want, crc32c, reference_crc32c
from wal.index import touched_by
from wal.records import Record, Update, Write

UPDATES_PER_BLOCK = 50
VALUE_BYTES = 100
PARTITIONS = 1024


class Measured(msgspec.Struct, frozen=True):
    """One figure: `amount` of `unit` in `seconds`."""

    name: str
    amount: float
    unit: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.name:<34} {self.amount / self.seconds:>14,.0f} {self.unit}/s   ({self.seconds:.3f} s)"


def blocks_of(updates: int) -> Iterator[list[Record]]:
    """Blocks of one-key updates, round-robin over the partitions."""
    value = b"v" * VALUE_BYTES
    for first in range(0, updates, UPDATES_PER_BLOCK):
        yield [
            Update([Write("acc", n % PARTITIONS, 1, n // PARTITIONS, [b"key-%08d" % n], [value])])
            for n in range(first, first + UPDATES_PER_BLOCK)
        ]


def open_log(path: Path) -> Log:
    """A log with the default settings."""
    return Log.open(DirectoryDisk(path), cluster="bench", node="n1", settings=LogSettings())


def measure_append(path: Path, updates: int, *, durable: bool) -> Measured:
    """Append; the next segment is prepared outside of the measured time, as the node's background thread does it."""
    log = open_log(path)
    blocks = list(blocks_of(updates))
    seconds = 0.0
    for block in blocks:
        if log.wants_next:
            log.prepare_next()
        began = time.perf_counter()
        log.append(block, now_ms=1, durable=durable)
        seconds += time.perf_counter() - began
    log.close()
    return Measured(f"append, {'fdatasync per block' if durable else 'no sync'}", updates, "updates", seconds)


def measure_open(path: Path) -> Measured:
    """Open a log after a crash: all of it is verified, the last segment's index is built."""
    began = time.perf_counter()
    log = open_log(path)
    seconds = time.perf_counter() - began
    records = log.next_lsn - 1
    log.close()
    return Measured("open, verifying everything", records, "updates", seconds)


def measure_replay(path: Path) -> Measured:
    """Replay everything from an open log."""
    log = open_log(path)
    began = time.perf_counter()
    records = sum(len(block.records) for block in log.replay(1))
    seconds = time.perf_counter() - began
    log.close()
    return Measured("replay", records, "updates", seconds)


def measure_history(path: Path, updates: int, *, missing: float) -> tuple[Measured, Measured]:
    """Read the last part of every partition's history; also how many bytes of log that took."""
    log = open_log(path)
    wants = []
    for partition in range(PARTITIONS):
        last = (updates - partition + PARTITIONS - 1) // PARTITIONS
        have = last - max(1, round(last * missing))
        wants.append(Want(("acc", partition), PartitionCounter(have), last, [(1, 1)]))
    began = time.perf_counter()
    cursor = log.history(wants)
    found = 0
    supplied = 0
    while batch := cursor.read(1 << 20):
        found += len(batch)
        supplied += sum(48 + len(write.keys[0]) + VALUE_BYTES for write in batch)
    seconds = time.perf_counter() - began
    assert cursor.done, "the cursor ended early"
    assert not cursor.missed, f"history was missed: {cursor.missed[:3]}"
    name = f"history, {missing:.0%} missing"
    log.close()
    return (
        Measured(name, found, "updates", seconds),
        Measured(f"{name}: bytes read / supplied x100", 100 * cursor.bytes_read / supplied, "", 1),
    )


def measure_index() -> Measured:
    """What the history index costs an append: the pass over one block's records."""
    block = next(blocks_of(UPDATES_PER_BLOCK))
    rounds = 2000
    began = time.perf_counter()
    for _ in range(rounds):
        touched_by(block)
    return Measured("index pass", rounds * UPDATES_PER_BLOCK, "updates", time.perf_counter() - began)


def measure_checksums() -> Iterator[Measured]:
    """Both implementations of CRC-32C at 16 KiB."""
    data = bytes(16 << 10)
    for name, checksum, rounds in (("hot path", crc32c, 20_000), ("crcmod", reference_crc32c, 1_000)):
        began = time.perf_counter()
        for _ in range(rounds):
            checksum(data, 0)
        yield Measured(f"CRC-32C, {name}", rounds * len(data) / 1e6, "MB", time.perf_counter() - began)


def run(path: Path, updates: int) -> Iterator[Measured]:
    """Every figure, in order."""
    yield from measure_checksums()
    yield measure_index()
    yield measure_append(path / "synced", updates // 10, durable=True)
    yield measure_append(path / "unsynced", updates, durable=False)
    yield measure_open(path / "unsynced")
    yield measure_replay(path / "unsynced")
    yield from measure_history(path / "unsynced", updates, missing=1.0)
    yield from measure_history(path / "unsynced", updates, missing=0.01)


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=500_000)
    parser.add_argument("--directory", type=Path, help="where to write; a temporary directory by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as path:
        for measured in run(Path(path), arguments.updates):
            print(measured, flush=True)


if __name__ == "__main__":
    main()
