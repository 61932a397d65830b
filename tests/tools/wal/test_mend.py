"""`wal cut`, `wal repair`, `wal export`: copies of what is whole, which say what they do not have."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

import engine
from tests.support.commands import wal
from tests.support.directories import cut_in_half
from wal import DirectoryDisk, list_segments, read, verify
from wal.cut import read_losses
from wal.records import Record

SETTINGS = {"partitions": 4, "wal_segment_bytes": 8 << 10, "wal_total_bytes": 1 << 20}
ROWS = 150


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node that was killed: its log reaches further than its store."""
    path = tmp_path / "node"
    with engine.open(path, **SETTINGS) as database:
        for n in range(ROWS):
            database.namespace("acc" if n % 3 else "names").put(b"key-%03d" % n, b"%0100d" % n)
        shutil.copytree(path, tmp_path / "killed", ignore=shutil.ignore_patterns("*.tmp"))
    return tmp_path / "killed"


def records(path: Path) -> list[Record]:
    """Everything in a log."""
    return [record for block in read(path) for record in block.records]


def answer(*arguments: object, code: int = 0) -> dict[str, Any]:
    """The one row that a command shows."""
    result = wal(*arguments, "--json")
    assert result.exit_code == code, result.output
    row: dict[str, Any] = msgspec.json.decode(result.stdout.splitlines()[-1])
    return row


def test_a_cut_is_the_log_up_to_a_block_and_says_what_it_lacks(node: Path, tmp_path: Path) -> None:
    whole = list(read(node / "wal"))
    for at in (0, len(whole) // 2, len(whole) - 2):
        until, out = whole[at].last_lsn, tmp_path / f"cut-{at}"
        told = answer("cut", node, "--to-lsn", until, "--out", out)
        assert (told["last_lsn"], told["lost_from"], told["lost_to"]) == (until, until + 1, whole[-1].last_lsn)
        assert list(read(out)) == whole[: at + 1]
        assert not verify(out).damaged
        checked = wal("verify", out)
        assert checked.exit_code == 4
        assert f"`foreshore wal cut` left LSN {until + 1} to {whole[-1].last_lsn} out" in checked.output
        assert "lost-by-cut" in wal("segments", out).stdout


def test_nothing_is_written_in_place_unless_that_is_said_and_nobody_runs_there(node: Path, tmp_path: Path) -> None:
    known = records(node / "wal")
    assert wal("cut", node, "--to-lsn", 10).exit_code == 2
    assert wal("cut", node, "--to-lsn", 10, "--in-place", "--out", tmp_path / "x").exit_code == 2
    with engine.open(tmp_path / "live", **SETTINGS) as database:
        database.namespace("acc").put(b"a", b"1")
        refused = wal("cut", tmp_path / "live", "--to-lsn", 3, "--in-place")
        assert refused.exit_code == 2
        assert "is open in this process" in refused.output
    assert records(node / "wal") == known


def test_a_cut_in_place_keeps_the_log_beside_it_and_the_node_comes_back_with_less(node: Path) -> None:
    known = records(node / "wal")
    until = list(read(node / "wal"))[-20].last_lsn
    told = answer("cut", node, "--to-lsn", until, "--in-place")
    assert records(Path(told["backup"])) == known
    assert records(node / "wal") == known[:until]
    with engine.open(node) as database:
        assert 0 < len(list(database.namespace("acc"))) < ROWS


def test_a_store_that_would_be_ahead_of_its_log_is_refused(tmp_path: Path) -> None:
    with engine.open(tmp_path / "node", **SETTINGS) as database:
        for n in range(50):
            database.namespace("acc").put(b"%d" % n, b"v")
    refused = wal("cut", tmp_path / "node", "--to-lsn", 10, "--in-place")
    assert refused.exit_code == 2
    assert "has a store that holds everything up to LSN" in refused.output


def test_a_damaged_log_is_repaired_up_to_its_damage_and_what_was_lost_is_on_record(node: Path, tmp_path: Path) -> None:
    names = [info.name for info in list_segments(node / "wal")]
    whole = list(read(node / "wal"))
    victim = [block for block in whole if block.segment == names[1]][3]
    path = node / "wal" / names[1]
    data = bytearray(path.read_bytes())
    data[victim.offset + 60] ^= 1
    path.write_bytes(data)
    assert wal("cut", node, "--to-lsn", victim.last_lsn, "--out", tmp_path / "cut").exit_code == 3
    told = answer("repair", node, "--out", tmp_path / "copy")
    assert told["last_lsn"] == victim.first_lsn - 1
    assert (told["lost_from"], told["lost_to"]) == (victim.first_lsn, whole[-1].last_lsn)
    assert list(read(tmp_path / "copy")) == [block for block in whole if block.last_lsn < victim.first_lsn]
    with DirectoryDisk(tmp_path / "copy", read_only=True) as disk:
        (loss,) = read_losses(disk)
    assert loss.by == "repair"
    assert loss.findings[0].lsn == victim.first_lsn
    lacks = f"lost `foreshore wal repair` left LSN {victim.first_lsn} to {whole[-1].last_lsn} out"
    for verb in (
        ["dump"],
        ["stat"],
        ["stat", "--jobs", 2],
        ["dump", "--jobs", 2],
        ["dump", "--last", 2],
        ["segments"],
        ["key", "acc", "key-001", "--partition", 1],
    ):
        result = wal(*verb, tmp_path / "copy")
        assert result.exit_code == 4, "what looks whole is not all that there was"
        assert result.stderr.count(lacks) == 1
    assert wal("dump", "--to-lsn", victim.first_lsn - 1, tmp_path / "copy").exit_code == 0, "nothing of this was left out"
    told = answer("repair", node, "--in-place")
    assert Path(told["backup"]).is_dir()
    with engine.open(node) as database:
        assert 0 < len(list(database.namespace("acc"))) < ROWS
    for reader in ("verify", "counters", "history"):
        result = wal(reader, node)
        assert result.exit_code in (4, 6)
        assert lacks in result.stdout + result.stderr


def test_damage_below_the_checkpoint_costs_the_beginning_and_not_the_end(tmp_path: Path) -> None:
    path = tmp_path / "node"
    with engine.open(path, **SETTINGS) as database:
        for n in range(ROWS):
            database.namespace("acc").put(b"key-%03d" % n, b"%0100d" % n)
    names = [info.name for info in list_segments(path / "wal")]
    first = path / "wal" / names[0]
    data = bytearray(first.read_bytes())
    data[700] ^= 1
    first.write_bytes(data)
    told = answer("repair", path, "--in-place")
    assert told["first_lsn"] > 1
    assert (told["lost_from"], told["lost_to"]) == (1, told["first_lsn"] - 1)
    assert wal("repair", path, "--in-place").exit_code == 6, "it is repaired, and its beginning is gone"
    with DirectoryDisk(path / "wal", read_only=True) as disk:
        assert [loss.last_lsn for loss in read_losses(disk)] == [told["lost_to"]], "what it lacks stays on record"
    checked = wal("verify", path)
    assert (checked.exit_code, "DAMAGED" in checked.output) == (6, False)
    assert "the store has all of it: a node starts here as it is" in checked.output, "nobody is told to throw it away"
    alone = wal("verify", path, "--log-only")
    assert (alone.exit_code, "DAMAGED" in alone.output) == (6, True), "who did not look at the store cannot know"
    with engine.open(path) as database:
        assert len(list(database.namespace("acc"))) == ROWS


def test_a_whole_log_needs_no_repair_and_a_file_that_is_too_short_does(node: Path, tmp_path: Path) -> None:
    result = wal("repair", node, "--out", tmp_path / "none")
    assert result.exit_code == 0
    assert "nothing to repair" in result.output
    assert not (tmp_path / "none").exists()
    cut_in_half(node)
    told = answer("repair", node, "--out", tmp_path / "copy")
    assert told["last_lsn"] > 0
    assert not verify(tmp_path / "copy").damaged


def test_what_is_gone_without_a_trace_is_not_called_whole_and_no_copy_of_the_rest_is_made(
    node: Path, tmp_path: Path
) -> None:
    segments = [node / "wal" / info.name for info in list_segments(node / "wal")]
    segments[0].unlink()
    for place in (node, node / "wal"):
        told = wal("repair", place, "--out", tmp_path / "none")
        assert told.exit_code == 6
        assert "missing segment=" in told.output
        assert "a copy of it would have no more" in told.output
    for segment in segments[1:]:
        segment.unlink()
    told = wal("repair", node, "--out", tmp_path / "none")
    assert told.exit_code == 6
    assert "has no segment" in told.output
    assert not (tmp_path / "none").exists()


# Exports.


def test_an_export_has_a_row_for_each_update_in_a_folder_for_each_namespace(node: Path, tmp_path: Path) -> None:
    result = wal("export", node, "--out", tmp_path / "out", "--values", "full")
    assert result.exit_code == 0, result.output
    rows = [
        msgspec.json.decode(line)
        for name in ("acc", "names")
        for line in (tmp_path / "out" / f"namespace={name}" / "part-00000.jsonl").read_bytes().splitlines()
    ]
    puts = [row for row in rows if row["op"] == "put" and row["key"].startswith("key-")]
    assert len(puts) == ROWS
    assert {row["key"]: row["value"] for row in puts} == {f"key-{n:03}": f"{n:0100}" for n in range(ROWS)}
    assert wal("export", node, "--out", tmp_path / "out").exit_code == 2
    assert not list((tmp_path / "out").rglob("*.tmp"))


def test_parquet_has_the_columns_that_spark_reads(node: Path, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    from tools.reconcile.tables import SCHEMAS, Table  # noqa: PLC0415  # it needs pyarrow

    result = wal("export", node, "--out", tmp_path / "out", "--format", "parquet", "--namespace", "acc")
    assert result.exit_code == 0, result.output
    (file,) = (tmp_path / "out").rglob("*.parquet")
    table = pq.ParquetFile(file).read()
    assert table.schema == SCHEMAS[Table.WAL]
    assert table.num_rows == sum(n % 3 > 0 for n in range(ROWS))


def test_a_directory_whose_lock_cannot_be_taken_is_not_mended_and_says_why(node: Path) -> None:
    (node / "lock").unlink(missing_ok=True)
    (node / "lock").mkdir()
    refused = wal("cut", node, "--to-lsn", 10_000, "--in-place")
    assert (refused.exit_code, refused.exception is None or isinstance(refused.exception, SystemExit)) == (2, True)
    assert "lock: Is a directory; expected files that this user may read and write" in refused.output
