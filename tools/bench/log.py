"""The figures of the log: what a restart replays, what a supplier reads, and what their parts cost.

The log is what a busy primary or backup writes: blocks of 50 one-key updates with 100-byte values over 1,024 partitions,
each with its transaction's id, in each of which everything older is known to be on every copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

import msgspec

from engine.errors import UsageError
from engine.host.data_directory import open_data_directory
from engine.state.recover import recover
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from engine.turn.settings import Settings
from tools.bench.figures import VALUE_BYTES, Measured, Setting, count_is, per_second
from wal import DirectoryDisk, Log, LogSettings, PartitionCounter, Want, crc32c, read, reference_crc32c
from wal.checksum import Checksum
from wal.ids import partition_of
from wal.index import touched_by
from wal.records import Record, Update, Write

UPDATES_PER_BLOCK = 50
PARTITIONS = 1024
CLUSTER, NODE, NAMESPACE = "bench", "n1", "bench"
SETTINGS = Settings(cluster=CLUSTER)

T = TypeVar("T")


def blocks_of(updates: int, *, draw: Random | None = None, value_bytes: int = VALUE_BYTES) -> Iterator[list[Record]]:
    """Blocks of one-key updates of new keys, which fall on the partitions as they like; with `draw`, of drawn values."""
    value = b"v" * value_bytes
    counters = [0] * PARTITIONS
    for first in range(0, updates, UPDATES_PER_BLOCK):
        block: list[Record] = []
        for n in range(first, min(first + UPDATES_PER_BLOCK, updates)):
            key = b"key-%08d" % n
            at = partition_of(key, PARTITIONS)
            start = counters[at]
            counters[at] += 1
            if draw is not None:
                value = draw.randbytes(value_bytes)
            block.append(
                Update([Write(NAMESPACE, at, 1, start, keys=[key], values=[value], stable=start, tx=n.to_bytes(16, "big"))])
            )
        yield block


async def replay(setting: Setting, figure: str, goal: float) -> list[Measured]:
    """A restart after a `kill -9` before the first checkpoint: open the directory, and fold all of its log."""
    path = setting.directory / figure
    setting.say(f"{figure}: writing a log of {setting.updates:,} updates")
    with closing(open_data_directory(path, cluster=CLUSTER, node=NODE, settings=SETTINGS)) as opened:
        _append(opened.log, blocks_of(setting.updates), durable=False)
    setting.say(f"{figure}: opening the directory")
    began, processor = time.perf_counter(), time.process_time()
    opened = open_data_directory(path, cluster=CLUSTER, node=None, settings=SETTINGS)
    seconds, processor = time.perf_counter() - began, time.process_time() - processor
    with closing(opened):
        found = sum(f.counter.lwm for f in opened.replica.fragments.values())
        count_is("updates replayed", setting.updates, found)
    log, opening = _processor_us(setting, lambda: open_log(path / "wal"))
    with closing(log):
        read, reading = _processor_us(setting, lambda: sum(len(block.records) for block in log.replay(1)))
        count_is("updates read", setting.updates, read)
        _, folding = _processor_us(setting, lambda: recover(LayeredStore(MemoryStore()), log))
    return [
        Measured(
            figure=figure,
            what="updates replayed when a node starts again, from opening its directory on",
            value=per_second(found, seconds),
            unit="updates/s",
            goal=goal,
            counted=found,
            seconds=round(seconds, 3),
            parts={
                "processor us each": round(1e6 * processor / found, 2),
                "to verify the log": opening,
                "to read it": reading,
                "to fold it": round(folding - reading, 2),
            },
        )
    ]


def _processor_us(setting: Setting, do: Callable[[], T]) -> tuple[T, float]:
    """What is done, and what it takes of the processor for each update."""
    began = time.process_time()
    done = do()
    return done, round(1e6 * (time.process_time() - began) / setting.updates, 2)


async def history(setting: Setting, figure: str, goal: float) -> list[Measured]:
    """What a supplier reads for a copy that misses everything, and for one that misses the end."""
    path = setting.directory / figure
    setting.say(f"{figure}: writing a log of {setting.updates:,} updates")
    log = open_log(path)
    ends = dict.fromkeys(range(PARTITIONS), 0)
    with closing(log):
        for block in blocks_of(setting.updates):
            _append(log, [block], durable=False)
            for record in block:
                assert isinstance(record, Update)
                ends[record.writes[0].partition] = record.writes[0].end
        log.sync()
        return [
            _history(log, figure, ends, 1.0, what="a copy that misses everything", goal=goal),
            _history(log, f"{figure}-end", ends, 0.01, what="a copy that misses a hundredth", goal=None),
        ]


def _history(log: Log, figure: str, ends: dict[int, int], missing: float, what: str, goal: float | None) -> Measured:
    wants = []
    expected = 0
    for partition, end in ends.items():
        have = end - min(end, max(1, round(end * missing)))
        expected += end - have
        wants.append(Want((NAMESPACE, partition), PartitionCounter(have), end, [(1, 1)]))
    began = time.perf_counter()
    cursor = log.history(wants)
    found = 0
    while batch := cursor.read(SETTINGS.supply_batch_bytes):
        found += sum(write.delta for write in batch)
    seconds = time.perf_counter() - began
    assert cursor.done, "the cursor ended early"
    assert not cursor.missed, f"history was missed: {cursor.missed[:3]}"
    count_is("updates supplied", expected, found)
    return Measured(
        figure=figure,
        what=f"updates read from the log for {what}",
        value=per_second(found, seconds),
        unit="updates/s",
        goal=goal,
        counted=found,
        seconds=round(seconds, 3),
        parts={"log bytes read per update": round(cursor.bytes_read / found, 1)} if found else {},
    )


async def archives(setting: Setting, figure: str) -> list[Measured]:
    """What archives cost to make, and what a supplier reads of them, and of sealed segments: in bytes of the log for each
    byte that it supplies, keys and values of a log that cannot be compressed."""
    path = setting.directory / figure
    setting.say(f"{figure}: writing a log of {setting.updates:,} updates")
    log = open_log(path)
    with closing(log):
        values = Random(1)  # noqa: S311  # figures, no secrets
        _append(log, blocks_of(setting.updates, draw=values), durable=False)
        log.sync()
        sealed = [info for info in log.segments() if info.sealed]
        if not sealed:
            raise UsageError(f"{setting.updates:,} updates fill no segment: expected about a million, with --updates")
        ends: dict[int, int] = {}
        for block in read(path, 1, sealed[-1].last_lsn):
            for record in block.records:
                assert isinstance(record, Update)
                ends[record.writes[0].partition] = record.writes[0].end
        found = [_supply(log, figure, ends, "sealed segments", 4)]
        setting.say(f"{figure}: making archives")
        began, processor, size = time.perf_counter(), time.process_time(), sum(info.bytes for info in sealed)
        while log.archive(log.next_lsn):
            pass
        seconds, processor = time.perf_counter() - began, time.process_time() - processor
        stored = sum(info.bytes for info in log.segments() if info.archived)
        found.append(
            Measured(
                figure=figure,
                what="log rewritten as archives, and read back",
                value=per_second(size, seconds) / 1e6,
                unit="MB/s",
                counted=setting.updates,
                seconds=round(seconds, 3),
                parts={"seconds of the processor": round(processor, 3), "bytes become": round(stored / size, 3)},
            )
        )
        return [*found, _supply(log, figure, ends, "archives", 2)]


def _supply(log: Log, figure: str, ends: dict[int, int], where: str, goal: float) -> Measured:
    """Of each fragment the last hundredth; and of a hundredth of the fragments everything."""
    read_of: list[float] = []
    supplied = 0
    began = time.perf_counter()
    for wanted in (
        {partition: max(1, end // 100) for partition, end in ends.items()},
        {partition: end for partition, end in ends.items() if not partition % 100},
    ):
        wants = [Want((NAMESPACE, at), PartitionCounter(ends[at] - n), ends[at], [(1, 1)]) for at, n in wanted.items()]
        cursor = log.history(wants)
        size = 0
        while batch := cursor.read(SETTINGS.supply_batch_bytes):
            supplied += sum(write.delta for write in batch)
            size += len(msgspec.msgpack.encode(batch))
        assert not cursor.missed, f"history was missed: {cursor.missed[:3]}"
        read_of.append(round(cursor.bytes_read / size, 2))
    return Measured(
        figure=f"{figure}-{where.split(maxsplit=1)[0]}",
        what=f"bytes read of {where} for each byte supplied, where a hundredth is missing",
        value=max(read_of),
        unit="x",
        goal=goal,
        at_most=True,
        counted=supplied,
        seconds=round(time.perf_counter() - began, 3),
        parts={"the end of all fragments": read_of[0], "a hundredth of them": read_of[1]},
    )


async def log_parts(setting: Setting, figure: str) -> list[Measured]:
    """Checksums, the index, appending with and without a sync, opening, reading."""
    setting.say(f"{figure}: checksums, appending, opening, reading")
    path, updates = setting.directory / figure, setting.updates
    found = list(_checksums(figure))
    block = next(blocks_of(UPDATES_PER_BLOCK))
    rounds = max(1, updates // UPDATES_PER_BLOCK)
    _, seconds = _timed(lambda: [touched_by(block) for _ in range(rounds)])
    found.append(_part(figure, "index pass over a block's records", rounds * UPDATES_PER_BLOCK, seconds))
    for name, count, durable in (("fdatasync per block", -(-updates // 10), True), ("no sync", updates, False)):
        blocks = list(blocks_of(count))
        log = open_log(path / name.replace(" ", "-"))
        with closing(log):
            seconds = _append(log, blocks, durable=durable)
            count_is("updates appended", count, log.next_lsn - 1)
        found.append(_part(figure, f"append, {name}", count, seconds))
    log, seconds = _timed(lambda: open_log(path / "no-sync"))
    found.append(_part(figure, "open, verifying everything", updates, seconds))
    with closing(log):
        read, seconds = _timed(lambda: sum(len(block.records) for block in log.replay(1)))
    count_is("updates read", updates, read)
    return [*found, _part(figure, "read and decode", updates, seconds)]


def _checksums(figure: str) -> Iterator[Measured]:
    data = bytes(16 << 10)
    for name, checksum, rounds in (("hot path", crc32c, 5_000), ("crcmod", reference_crc32c, 200)):
        _, seconds = _timed(partial(_again, checksum, data, rounds))
        yield _part(figure, f"CRC-32C of 16 KiB, {name}", rounds, seconds, "blocks")


def _again(checksum: Checksum, data: bytes, rounds: int) -> None:
    for _ in range(rounds):
        checksum(data, 0)


def _part(figure: str, what: str, count: int, seconds: float, unit: str = "updates") -> Measured:
    return Measured(
        figure=figure,
        what=what,
        value=per_second(count, seconds),
        unit=f"{unit}/s",
        counted=count,
        seconds=round(seconds, 3),
    )


def open_log(path: Path) -> Log:
    """A log with the default settings."""
    return Log.open(DirectoryDisk(path), cluster=CLUSTER, node=NODE, settings=LogSettings())


def _append(log: Log, blocks: Iterable[list[Record]], *, durable: bool) -> float:
    """Append; how long that took. What a node's background thread does is done outside of it."""
    seconds = 0.0
    for block in blocks:
        if log.wants_next:
            log.prepare_next()
        if log.wants_index:
            log.write_index()
        began = time.perf_counter()
        log.append(block, now_ms=1, durable=durable)
        seconds += time.perf_counter() - began
    return seconds


def _timed(do: Callable[[], T]) -> tuple[T, float]:
    began = time.perf_counter()
    done = do()
    return done, time.perf_counter() - began
