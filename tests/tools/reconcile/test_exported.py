"""Exported tables are compared as directories are, as far as they go: they have no log."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from engine.errors import UsageError
from tests.support.damages import DAMAGES
from tests.support.directories import copies
from tools.reconcile import Values, check
from tools.reconcile.cli import app
from tools.reconcile.copies import Rules
from tools.reconcile.exported import check_tables
from tools.reconcile.findings import Finding, Kind, Proof
from tools.reconcile.sketch import sketch_of
from tools.reconcile.sketched import compare_sketches
from tools.reconcile.tables import Table, batches, pieces


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def exported(name: str, stopped: list[Path], to: Path, values: str = "full") -> list[str]:
    """A table of each directory, made on its host, after something was done to it."""
    directories = copies(stopped, to / "data")
    DAMAGES[name].do(to / "data")
    tables = [str(to / f"table-{path.name}") for path in directories]
    for directory, table in zip(directories, tables, strict=True):
        told = run("export", directory, "-o", table, "--values", values)
        assert told.exit_code == 0, told.output
    return tables


def told(finding: Finding) -> tuple[str, str, str | None, list[str]]:
    return str(finding.kind), finding.where, finding.key, finding.on


@pytest.mark.parametrize("name", ["nothing", "a forged value", "several rows", "a fragment that is gone from one store"])
def test_what_differs_is_found_in_tables(name: str, stopped: list[Path], tmp_path: Path) -> None:
    tables = exported(name, stopped, tmp_path)
    report = check_tables(tables, rules=Rules(grace_ms=-1), shares=5)
    assert report.exit_code == DAMAGES[name].exit_code
    assert sorted(map(repr, map(told, report.decoded()))) == sorted(map(repr, DAMAGES[name].found))
    whole = check([str(tmp_path / "data" / node) for node in ("n1", "n2", "n3")])
    assert (report.summary.keys, report.summary.copies) == (whole.summary.keys, whole.summary.copies)
    assert all(f.proof in (None, Proof.MAJORITY, Proof.NONE) for f in report.decoded()), "there is no log"
    found = [row for piece in pieces(Table.DIFF, tables, Values.HASH) for b in batches(piece) for row in b.to_pylist()]
    assert sorted(row["finding"].encode() for row in found) == sorted(report.findings)
    command = run("check", "--sketches", *tables, "--json")
    assert (command.exit_code, command.stdout.encode()) == (
        report.exit_code,
        report.findings_bytes() + msgspec.json.encode(report.summary) + b"\n",
    )


@pytest.mark.parametrize(
    ("name", "code"),
    [("one value changed on all copies", 3), ("a row that no copy has any more", 1), ("a flipped bit", 1)],
)
def test_what_only_a_log_could_tell_is_never_called_consistent(
    name: str, code: int, stopped: list[Path], tmp_path: Path
) -> None:
    report = check_tables(exported(name, stopped, tmp_path), rules=Rules(grace_ms=-1))
    assert report.exit_code == code
    assert "buckets have to be seen" in " ".join(report.summary.incomplete)
    assert {f.kind for f in report.decoded()} <= {Kind.CONTENTS_MISMATCH, Kind.MISSING_ON}


def test_tables_without_values_are_compared_as_long_as_they_agree(stopped: list[Path], tmp_path: Path) -> None:
    same = exported("nothing", stopped, tmp_path / "same", values="none")
    assert check_tables(same, rules=Rules(grace_ms=-1)).exit_code == 0
    differ = exported("a forged value", stopped, tmp_path / "differ", values="hash")
    refused = run("check", "--sketches", *differ)
    assert (refused.exit_code, "export it with --values full" in refused.stderr) == (2, True)
    mixed = run("check", "--sketches", same[0], stopped[1])
    assert (mixed.exit_code, "is no table of `foreshore reconcile export" in mixed.stderr) == (2, True)
    with pytest.raises(UsageError, match="name tables only"):
        pieces(Table.DIFF, [same[0], str(stopped[1])], Values.HASH)


def test_no_fragment_of_a_sketch_is_cut_by_keys(stopped: list[Path]) -> None:
    """As its survey would be if one were heavy: the rows of a range are nowhere."""
    sketches = [sketch_of(str(path)) for path in stopped]
    name = sketches[0].fragments[0].view.name
    heavy = [
        msgspec.structs.replace(
            s, survey=msgspec.structs.replace(s.survey, weights={name[1]: 2_000_000}, splits={name: [b"a", b"k2", b"k5"]})
        )
        for s in sketches
    ]
    whole, _ = compare_sketches(sketches, {}, rules=Rules(grace_ms=-1), limit=0)
    cut, _ = compare_sketches(heavy, {}, rules=Rules(grace_ms=-1), limit=0)
    assert cut.summary == whole.summary
