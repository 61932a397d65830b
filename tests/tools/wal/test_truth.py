"""What may never be called whole: logs that were cut, lost, or laid into another directory; and what their peers know."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

import engine
import engine.aio
from engine.offline.directory import read_directory
from tests.support.commands import foreshore, objects, wal
from tests.support.directories import append, copies, cut_in_half, lose_the_log, zero_last_blocks
from wal import list_segments, read
from wal import records as r

READERS = ("dump", "stat", "segments", "counters", "verify")


# A file that is too short.


def test_a_segment_that_was_cut_is_damage_to_a_node_that_starts_and_to_who_looks(tmp_path: Path) -> None:
    async def puts() -> None:
        async with await engine.aio.open(tmp_path / "node") as database:
            for at in range(400):
                await database.namespace("acc").put(b"k%d" % at, bytes(40))
            shutil.copytree(tmp_path / "node", tmp_path / "killed", ignore=shutil.ignore_patterns("*.tmp"))

    asyncio.run(puts())
    killed = tmp_path / "killed"
    size = cut_in_half(killed)
    with pytest.raises(engine.CorruptionError, match=f"the file has {size} bytes: expected"):
        engine.open(killed)
    for verb in READERS:
        result = wal(verb, killed)
        assert (verb, result.exit_code) == (verb, 5)
        assert f"the file has {size} bytes" in result.output
    started = foreshore("node", "start", "--data", killed, "--listen", "127.0.0.1:0")
    assert started.returncode == 5, started.stderr
    with engine.open(tmp_path / "node") as database:
        assert len(list(database.namespace("acc"))) == 400


@pytest.mark.parametrize(("size", "says"), [(100, "expected a header of 256 bytes, found 100"), (None, "expected the")])
def test_a_segment_that_ends_in_its_header_or_is_too_long_is_damage_as_well(
    size: int | None, says: str, left: list[Path], tmp_path: Path
) -> None:
    (copy,) = copies(left[:1], tmp_path)
    segment = sorted((copy / "wal").glob("*.wal"))[-1]
    os.truncate(segment, segment.stat().st_size + 4096 if size is None else size)
    for verb in READERS:
        result = wal(verb, copy)
        assert (verb, result.exit_code) == (verb, 5)
        assert says in result.output
    started = foreshore("node", "start", "--data", copy, "--listen", "127.0.0.1:0")
    assert started.returncode == 5, started.stderr
    assert says in started.stderr


# Whose log is it?


@pytest.mark.parametrize("verb", READERS)
def test_the_log_of_another_node_is_told_once_by_every_reader(verb: str, left: list[Path], tmp_path: Path) -> None:
    first, second = copies(left[:2], tmp_path)
    shutil.rmtree(second / "wal")
    shutil.copytree(first / "wal", second / "wal")
    result = wal(verb, second)
    assert result.exit_code == 6, result.output
    said = [line for line in result.output.splitlines() if "foreign" in line]
    assert len(said) == 1, result.output
    assert "a log of node 'n1' in cluster 'foreshore': expected 'n2' in 'foreshore'" in said[0]
    if verb in {"dump", "segments"}:
        assert result.stdout == wal(verb, first).stdout.replace("node=n1", "node=n2")
    assert wal(verb, first).exit_code == 0


# A log that is not there.


def test_a_log_of_which_every_segment_is_gone_is_not_whole(left: list[Path], tmp_path: Path) -> None:
    (directory,) = copies(left[:1], tmp_path)
    lose_the_log(directory)
    assert [file.name for file in (directory / "wal").iterdir()] == ["next.segment"]
    result = wal("verify", directory)
    assert result.exit_code == 6
    assert "has no segment: a node that was ever started has one" in result.stdout
    assert "a Boot record: a node that was ever started has one; the log that had it is gone" in result.stdout


def test_a_log_that_begins_above_lsn_1_needs_a_record_that_explains_it(left: list[Path], tmp_path: Path) -> None:
    (directory,) = copies(left[:1], tmp_path)
    _rotate(directory, 3)
    names = [info.name for info in list_segments(directory / "wal")]
    assert wal("verify", directory).exit_code == 0
    (directory / "wal" / names[0]).unlink()
    result = wal("verify", directory)
    assert result.exit_code == 6
    assert "and it holds no Trimmed: expected a Trimmed record that explains it" in result.stdout


def test_a_sealed_last_segment_is_told(left: list[Path], tmp_path: Path) -> None:
    (directory,) = copies(left[:1], tmp_path)
    _rotate(directory, 2)
    (directory / "wal" / list_segments(directory / "wal")[-1].name).unlink()
    result = wal("verify", directory)
    assert result.exit_code == 4
    assert "unfollowed segment=" in result.stdout
    assert wal("verify", "--against", directory, *left[1:]).exit_code == 0


def _rotate(directory: Path, segments: int) -> None:
    """Fill a stopped node's log with records that mean nothing, until it has so many segments."""
    while len(list_segments(directory / "wal")) < segments:
        append(directory, [r.Checkpoint(0)] * 50_000, now_ms=4_000_000_000_000)


# What the peers know.


def test_counters_that_an_in_sync_copy_lost_are_owed_and_only_its_peers_can_tell(left: list[Path], tmp_path: Path) -> None:
    (directory,) = copies(left[:1], tmp_path)
    with read_directory(directory) as before:
        had = {name: view.counter.lwm for name, view in before.fragments.items()}
    zero_last_blocks(directory, 6)
    alone = wal("verify", directory)
    assert alone.exit_code == 0
    assert "nobody can tell from this disk alone: whether a last group of records followed LSN" in alone.stdout
    assert alone.stdout.endswith(": whole\n")
    with read_directory(directory) as after:
        lost = {name: view.counter.lwm for name, view in after.fragments.items()}
    result = wal("verify", "--against", directory, *left[1:])
    assert result.exit_code == 4, result.stdout
    owed = {(line.split()[2], line.split()[3]) for line in result.stdout.splitlines() if ": owes " in line}
    expected = {
        (f"{name[0]}/{name[1]}", f"counters={lost.get(name, 0) + 1}..{lwm}:")
        for name, lwm in had.items()
        if lwm > lost.get(name, 0)
    }
    assert owed == expected
    whole = wal("verify", "--against", left[0], *left[1:])
    assert (whole.exit_code, "against n2, n3: nothing lost" in whole.stdout) == (0, True)
    *_, told, last = [line for line in objects("verify", "--against", *left) if "finding" not in line]
    assert (told["nothing_lost"], last["exit_codes"]) == (True, [])


def test_who_is_asked_has_to_be_a_peer(left: list[Path]) -> None:
    assert wal("verify", "--against", left[0]).exit_code == 2
    result = wal("verify", "--against", left[0], left[0])
    assert (result.exit_code, "expected a peer of 'n1'" in result.output) == (2, True)


# Only what is needed is needed.


def test_damage_below_the_checkpoint_is_told_and_the_rest_is_folded(checkpointed: list[Path], tmp_path: Path) -> None:
    (directory,) = copies(checkpointed[:1], tmp_path)
    before = objects("counters", directory)
    blocks = list(read(directory / "wal"))
    assert len(blocks) > 4
    segment = directory / "wal" / blocks[1].segment
    data = bytearray(segment.read_bytes())
    data[blocks[1].offset + 60] ^= 4
    segment.write_bytes(data)
    with read_directory(directory) as state:
        assert state.checkpoint_lsn > blocks[1].last_lsn
    result = wal("verify", directory)
    assert result.exit_code == 5
    assert " folded_lsn=" in result.stdout
    assert objects("counters", directory) == before
