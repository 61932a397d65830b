"""Readers hold what a block or a footer takes, and not what the log does."""

from __future__ import annotations

import os
from contextlib import closing, redirect_stdout
from functools import partial
from pathlib import Path

import pytest

from tests.support.memory import held_while
from tests.wal.logs import open_log
from tools.quick import quickly
from wal import DirectoryDisk, LogSettings
from wal.ids import partition_of
from wal.records import Record, Update, Write

SETTINGS = LogSettings(segment_bytes=1 << 20, total_bytes=64 << 20)
PARTITIONS, VALUE_BYTES, EACH, NUMBER = 64, 1_000, 50, 77
KEY = b"key-%06d" % NUMBER
MORE = 4
VERBS = {
    "verify": [],
    "stat": [],
    "dump": [],
    "dump --json": [],
    "dump --tx": [NUMBER.to_bytes(16, "big").hex()],
    "tx": [NUMBER.to_bytes(16, "big").hex()],
    "key acc": [KEY.decode(), "--partition", str(partition_of(KEY, PARTITIONS))],
}


def _written(path: Path, segments: int) -> None:
    with closing(open_log(DirectoryDisk(path), SETTINGS)) as log:
        counters, n = [0] * PARTITIONS, 0
        while len(log.segments()) < segments:
            block: list[Record] = []
            for _ in range(EACH):
                key = b"key-%06d" % n
                at = partition_of(key, PARTITIONS)
                block.append(
                    Update([Write("acc", at, 1, counters[at], [key], [os.urandom(VALUE_BYTES)], tx=n.to_bytes(16, "big"))])
                )
                counters[at] += 1
                n += 1
            log.append(block, now_ms=n, durable=False)
            log.write_index()


def read_by(words: list[str]) -> int | None:
    """In a process of its own, where nobody keeps what is printed."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        quickly(["wal", *words])
        return quickly(["wal", *words])


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A log, and one of so many times as many segments."""
    found = tmp_path_factory.mktemp("few"), tmp_path_factory.mktemp("many")
    for path, segments in zip(found, (4, 4 * MORE), strict=True):
        _written(path, segments)
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_a_longer_log_takes_no_more_memory_to_read(logs: tuple[Path, Path], verb: str) -> None:
    held = []
    for path in logs:
        code, most = held_while(partial(read_by, [*verb.split(), *VERBS[verb], str(path)]))
        assert code == 0
        held.append(most)
    assert held[1] < held[0] + (1 << 20), f"{held}: {MORE} times as many segments of 1 MiB"
