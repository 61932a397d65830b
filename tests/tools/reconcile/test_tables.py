"""Data directories as tables: every record, every row, every finding, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from engine.errors import UsageError
from engine.offline.directory import read_directory
from tests.support.damages import DAMAGES
from tests.support.directories import SEGMENT_BYTES, append, copies
from tests.support.reconciled import NOW_MS
from tools.reconcile import Values, check
from tools.reconcile.cli import app
from tools.reconcile.tables import SCHEMAS, Reached, Table, batches, ends_of_logs, pieces, pieces_between
from wal import Block, inspect, list_segments
from wal import records as r
from wal.records import spans


def rows_of(table: Table, directories: list[Path], values: Values = Values.HASH) -> list[dict[str, Any]]:
    """A whole table."""
    found = [b for piece in pieces(table, [str(path) for path in directories], values) for b in batches(piece)]
    assert all(batch.schema == SCHEMAS[table] for batch in found)
    return [row for batch in found for row in batch.to_pylist()]


def test_the_state_is_every_row_of_every_copy(stopped: list[Path]) -> None:
    told = [(x["node"], x["namespace"], x["partition"], x["key"], x["counter"]) for x in rows_of(Table.STATE, stopped)]
    expected = []
    for directory in stopped:
        with read_directory(directory) as state:
            for name in sorted(state.fragments):
                rows = state.rows(name, lambda _key, _what: None)
                expected += [(directory.name, *name, key, entry.counter) for key, entry in rows]
    assert told == expected
    assert {x["value"] for x in rows_of(Table.STATE, stopped[:1])} == {None}
    full = rows_of(Table.STATE, stopped[:1], Values.FULL)
    assert all((x["value"] is None) == x["tombstone"] for x in full)


def test_the_log_is_every_counter_that_a_record_speaks_of(stopped: list[Path]) -> None:
    told = rows_of(Table.WAL, stopped[:1])
    blocks = [found for found in inspect(stopped[0] / "wal") if isinstance(found, Block)]
    records = [(lsn, x) for block in blocks for lsn, x in enumerate(block.records, block.first_lsn)]
    counters = {(x["lsn"], x["namespace"], x["partition"], x["counter"]) for x in told}
    assert len(counters) == len(told)
    assert counters <= {
        (lsn, n, p, start + 1 + at) for lsn, x in records for n, p, start, delta in spans(x) for at in range(delta)
    }
    assert {x["op"] for x in told} >= {"put", "delete"}
    assert {x["lsn"] for x in told if x["record"] == "update"} == {
        lsn for lsn, x in records if type(x).__name__ == "Update"
    }


def test_tables_are_exported_as_parquet(stopped: list[Path], tmp_path: Path) -> None:
    for table in Table:
        out = tmp_path / table
        result = CliRunner().invoke(app, ["export", *map(str, stopped), "-o", str(out), "--kind", table])
        assert result.exit_code == 0, result.output
        rows = rows_of(table, stopped)
        assert result.stdout == f"{len(rows)} rows in {out}\n"
        found = [x for file in sorted(out.rglob("*.parquet")) for x in pq.ParquetFile(file).read().to_pylist()]
        assert sorted(found, key=repr) == sorted(rows, key=repr)
        if table is not Table.DIFF:
            beside = {"_sketches"} if table is Table.STATE else set[str]()  # which readers of Parquet pass over
            assert {path.name for path in out.iterdir()} == {"node=n1", "node=n2", "node=n3"} | beside
    for arguments, says in (
        (["-o", str(tmp_path / "wal")], "is there already"),
        (["-o", str(tmp_path / "new"), "--kind", "rows"], "--kind is 'rows': expected state, wal, diff"),
    ):
        refused = CliRunner().invoke(app, ["export", *map(str, stopped), *arguments])
        assert (refused.exit_code, says in refused.stderr) == (2, True)


def test_an_export_that_fails_leaves_nothing_that_looks_like_a_table(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path / "data")
    (directories[1] / "store" / "data.mdb").write_bytes(b"?")
    arguments = ["export", *map(str, directories), "-o", str(tmp_path / "out")]
    assert CliRunner().invoke(app, arguments).exit_code == 3
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert CliRunner().invoke(app, [*arguments[:2], *arguments[3:]]).exit_code == 0, (
        "the same again, without what is damaged"
    )


def test_the_differences_are_the_findings_of_the_report(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES["several rows"].do(tmp_path)
    lines = [x["finding"].encode() for x in rows_of(Table.DIFF, directories)]
    assert lines == list(check([str(path) for path in directories]).findings)
    (tmp_path / "n2" / "store" / "data.mdb").write_bytes(b"?")
    with pytest.raises(UsageError, match="compares without it"):
        pieces(Table.DIFF, [str(path) for path in directories], Values.HASH)
    with pytest.raises(UsageError, match="no directory was given"):
        pieces(Table.WAL, [], Values.HASH)


def test_a_log_that_goes_on_is_read_from_where_it_was(stopped: list[Path], tmp_path: Path) -> None:
    """In steps of any size: every record once, in its order."""
    directories = [str(path) for path in copies(stopped, tmp_path)]
    whole = rows_of(Table.WAL, [Path(path) for path in directories])
    start: Reached = dict.fromkeys(directories, 0)
    told: list[dict[str, Any]] = []
    for step in (1, 7, 100, 10_000):
        ends = {path: min(lsn, start[path] + step) for path, lsn in ends_of_logs(directories).items()}
        for piece in pieces_between(start, ends, Values.HASH):
            told += [row for batch in batches(piece) for row in batch.to_pylist()]
        start = ends
    assert pieces_between(start, ends_of_logs(directories), Values.HASH) == []
    assert sorted(told, key=lambda x: (x["node"], x["lsn"])) == sorted(whole, key=lambda x: (x["node"], x["lsn"]))
    append(Path(directories[0]), [r.Update([r.Write("acc", 1, 1, 900, [b"new"], [b"1"])])], now_ms=NOW_MS)
    (piece,) = pieces_between(start, ends_of_logs(directories), Values.FULL)
    ((row,),) = [batch.to_pylist() for batch in batches(piece)]
    assert (row["node"], row["key"], row["value"], row["counter"]) == ("n1", b"new", b"1", 901)


def test_what_was_trimmed_before_it_was_read_is_told(stopped: list[Path], tmp_path: Path) -> None:
    (directory,) = copies(stopped[:1], tmp_path)
    block = [r.Update([r.Write("acc", 1, 1, 900, [b"new"], [bytes(SEGMENT_BYTES // 4)])])]
    while len(list_segments(directory / "wal")) < 3:
        append(directory, block, now_ms=NOW_MS)
    first, *rest = list_segments(directory / "wal")
    (directory / "wal" / first.name).unlink()
    ends = ends_of_logs([str(directory)])
    with pytest.raises(UsageError, match="what lay between was trimmed"):
        pieces_between({str(directory): 1}, ends, Values.NONE)
    assert len(pieces_between({str(directory): 0}, ends, Values.NONE)) == len(rest)
