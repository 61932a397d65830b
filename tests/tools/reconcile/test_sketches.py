"""Sketches, made where a directory is and compared elsewhere, lead to the findings that whole directories have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from engine.errors import UsageError
from engine.state.store import CheckpointImage, Entry
from engine.state.store_lmdb import LmdbStore
from tests.support.damages import COMPARED, DAMAGES
from tests.support.directories import append, copies, replace
from tests.support.reconciled import NOW_MS, fragment_of
from tools.reconcile import Report, Values, check, in_this_process
from tools.reconcile.cli import app
from tools.reconcile.copies import Rules
from tools.reconcile.on_hosts import Place, places_of
from tools.reconcile.sketch import Asking, Bucket, Sketch, Slice, encoded, leaves_of, read_file, sketch_of, slice_of
from tools.reconcile.sketched import check_sketches
from wal import list_segments
from wal import records as r

RULES = Rules(grace_ms=-1, values=Values.FULL)


def written(to: Path, things: Sequence[Sketch | Slice | Asking]) -> list[str]:
    """Files of these."""
    paths = [to / f"{type(thing).__name__}-{at}" for at, thing in enumerate(things)]
    for path, thing in zip(paths, things, strict=True):
        path.write_bytes(encoded(thing))
    return [str(path) for path in paths]


def by_sketches(directories: Sequence[Path], to: Path) -> tuple[Report, Report]:
    """What sketches alone say, and what is said once nothing more has to be seen."""
    sketches = [sketch_of(str(path)) for path in directories]
    files = written(to, sketches)
    first, asking = check_sketches(files, rules=RULES)
    report, looks = first, 0
    while asking is not None:
        looks += 1
        assert looks < 3, "what was seen is asked for again"
        (named,) = written(to, [asking])
        found = read_file(named)
        assert isinstance(found, Asking)
        usable = [sketch.survey.path for sketch in sketches if not sketch.survey.problem]
        slices = written(to, [slice_of(path, found) for path in usable])
        report, asking = check_sketches([*files, *slices], rules=RULES)
    return first, report


@pytest.mark.parametrize("name", COMPARED)
def test_the_same_is_found_as_in_whole_directories(name: str, stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES[name].do(tmp_path)
    directories = [path for path in directories if path.exists()]
    whole = check([str(path) for path in directories], values=Values.FULL, engine=in_this_process)
    first, report = by_sketches(directories, tmp_path)
    assert report.findings_bytes() == whole.findings_bytes()
    assert report.summary_bytes() == whole.summary_bytes()
    assert first.exit_code in (whole.exit_code, 3), "a verdict is never better than what was seen"


def test_whole_copies_need_no_rows(stopped: list[Path], running: list[Path], tmp_path: Path) -> None:
    for at, directories in enumerate((stopped, running)):
        (tmp_path / str(at)).mkdir()
        first, report = by_sketches(directories, tmp_path / str(at))
        assert first is report
        assert report.summary_bytes() == check([str(path) for path in directories]).summary_bytes()


def test_rows_whose_log_cannot_be_opened_are_told_and_not_believed(stopped: list[Path], tmp_path: Path) -> None:
    """The sketch was made before; nothing that such a log says of the rows is the whole of it."""
    directories = copies(stopped, tmp_path)
    namespace, number = name = fragment_of(b"k302")
    replace(directories[1], name, {b"k302": Entry(1, 1, b"forged")})
    sketches = [sketch_of(str(path)) for path in directories]
    files = written(tmp_path, sketches)
    _, asking = check_sketches(files, rules=RULES)
    assert asking is not None
    keys: list[Any] = ["7"]
    write = r.Write(namespace, number, 1, sketches[0].fragments[0].view.counter.lwm, keys, [b""])
    append(directories[0], [r.Update([write])], now_ms=NOW_MS)
    store = LmdbStore(directories[0] / "store")
    store.write(CheckpointImage(list_segments(directories[0] / "wal")[-1].last_lsn, {}, {}, {}, cleared=[], rows={}))
    store.close()
    slices = [slice_of(str(path), asking) for path in directories]
    assert [bool(part.unopened) for part in slices] == [True, False, False]
    report, left = check_sketches([*files, *written(tmp_path, slices)], rules=RULES)
    unreadable, differs = report.decoded()
    assert (unreadable.kind, unreadable.partition, unreadable.on) == ("UNREADABLE", number, ["n1"])
    assert (differs.kind, differs.key, list(differs.copies)) == ("VERSION_MISMATCH", "k302", ["n2", "n3"])
    assert left is None


def test_buckets_add_up() -> None:
    rows = [(b"k%d" % n, Entry(1, n, b"v" if n % 3 else None)) for n in range(1, 500)]
    deep = leaves_of(rows, 5, {0, 1, 31})
    for depth in (0, 1, 4, 5):
        odd = sorted({bucket >> (5 - depth) for bucket in (0, 1, 31)})
        assert deep.at(depth) == leaves_of(rows, depth, odd)
    changed = leaves_of([*rows[:-1], (rows[-1][0], Entry(1, rows[-1][1].counter, b"w"))], 5, {0, 1, 31})
    assert sum(deep.sum_of(bucket) != changed.sum_of(bucket) for bucket in range(32)) == 1


def test_a_file_that_contradicts_itself_is_refused(stopped: list[Path], tmp_path: Path) -> None:
    asking, sketch = written(tmp_path, [Asking("c", [Bucket("acc", 0, 0, [0], [], 0)]), sketch_of(str(stopped[0]))])
    for path, there, instead in (
        (asking, b"\xa5depth\x00", b"\xa5depth\x7f"),
        (sketch, b"\xa5depth\x00", b"\xa5depth\x01"),
    ):
        data = Path(path).read_bytes()
        assert there in data
        Path(path).write_bytes(data.replace(there, instead))
        with pytest.raises(UsageError, match=r"is damaged: .*depth"):
            read_file(path)


def test_directories_on_hosts_are_named_by_node_and_path(stopped: list[Path]) -> None:
    assert [str(place) for place in places_of(["foreshore://n1/data/n1"])] == ["foreshore://n1/data/n1"]
    for given, refusal in (
        (["foreshore://n1/a", "/data/n2"], "name all directories that way, or none"),
        (["foreshore:///a"], "expected foreshore://NODE/PATH"),
        (["foreshore://n1"], "expected foreshore://NODE/PATH"),
        (["foreshore://n1/a", "foreshore://n1/b"], "is the second directory of 'n1'"),
    ):
        with pytest.raises(UsageError, match=refusal):
            places_of(given)
    for node, here in (("n1", True), ("n2", False)):
        assert Place(node, str(stopped[0])).is_here() is here
    assert not Place("n1", str(stopped[0] / "nowhere")).is_here()
    for options in ([], ["--engine", "spark", "--level", "digest"], ["--engine", "spark", "--recheck", "1"]):
        assert run("check", "foreshore://n1/a", "foreshore://n2/a", *options).exit_code == 2


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_the_commands_of_the_page(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    name = fragment_of(b"k302")
    replace(directories[1], name, {b"k302": Entry(1, 1, b"forged")})
    sketches, rows = [tmp_path / f"n{at}.sketch" for at in (1, 2, 3)], [tmp_path / f"n{at}.rows" for at in (1, 2, 3)]
    for directory, file in zip(directories, sketches, strict=True):
        assert run("sketch", directory, "-o", file).exit_code == 0
    assert all(b"k302" not in file.read_bytes() for file in sketches), "no key leaves its host"
    asked = run("check", "--sketches", *sketches, "--ask", tmp_path / "buckets")
    assert (asked.exit_code, "1 buckets have to be seen" in asked.stdout) == (3, True)
    for directory, file in zip(directories, rows, strict=True):
        assert run("rows", directory, "--buckets", tmp_path / "buckets", "-o", file).exit_code == 0
    found = run("check", "--sketches", *sketches, *rows, "--json")
    assert found.stdout == run("check", *directories, "--json").stdout
    refused = run("check", "--sketches", *sketches, tmp_path / "buckets")
    assert (refused.exit_code, "has buckets that are asked for" in refused.stderr) == (2, True)
    sketches[0].write_bytes(sketches[0].read_bytes()[:-5])
    assert "is damaged" in run("check", "--sketches", *sketches).stderr
    assert run("check", "--sketches", directories[0] / "identity.json").exit_code == 2
    assert run("check", "--sketches", rows[0]).exit_code == 2
    assert run("rows", directories[0], "--buckets", sketches[1], "-o", rows[0]).exit_code == 2
    for wrong in (tmp_path / "nothing", tmp_path):
        refused = run("rows", directories[0], "--buckets", wrong, "-o", rows[0])
        assert (refused.exit_code, "name the file of `check --sketches --ask`" in refused.stderr) == (2, True)
