"""Data directories as tables: every record, every row, every finding, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from engine.errors import UsageError
from engine.offline.directory import read_directory
from tests.support.directories import copies
from tests.support.reconciled import DAMAGES
from tools.reconcile import Values, check
from tools.reconcile.cli import app
from tools.reconcile.tables import SCHEMAS, Table, batches, pieces
from wal import Block, inspect
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
            assert {path.name for path in out.iterdir()} == {"node=n1", "node=n2", "node=n3"}
    for arguments, says in (
        (["-o", str(tmp_path / "wal")], "is there already"),
        (["-o", str(tmp_path / "new"), "--kind", "rows"], "--kind is 'rows': expected state, wal, diff"),
    ):
        refused = CliRunner().invoke(app, ["export", *map(str, stopped), *arguments])
        assert (refused.exit_code, says in refused.stderr) == (2, True)


def test_the_differences_are_the_findings_of_the_report(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES["several rows"].do(tmp_path)
    lines = [x["finding"].encode() for x in rows_of(Table.DIFF, directories)]
    assert lines == check([str(path) for path in directories]).findings
    (tmp_path / "n2" / "store" / "data.mdb").write_bytes(b"?")
    with pytest.raises(UsageError, match="compares without it"):
        pieces(Table.DIFF, [str(path) for path in directories], Values.HASH)
    with pytest.raises(UsageError, match="no directory was given"):
        pieces(Table.WAL, [], Values.HASH)
