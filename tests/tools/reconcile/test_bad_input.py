"""What a reconciliation is given and cannot use: each is told for what it is, and what else is there is compared."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import lmdb
import pytest
from typer.testing import CliRunner, Result

from engine.errors import UsageError
from engine.host.data_directory import open_data_directory
from engine.offline.directory import read_directory
from engine.state.identity import OWNER, read_identity
from engine.state.store import Entry
from engine.state.store_envelope import NODE
from engine.turn.settings import Settings
from tests.support.damages import DAMAGES
from tests.support.directories import append, copies, lead_astray, replace, unmourned, zero_last_blocks
from tests.support.reconciled import NOW_MS, adopt, fragment_of
from tools.cli import app
from tools.reconcile import Report, check, in_this_process
from tools.reconcile.children import InChildren, WorkerDied
from tools.reconcile.plan import Share
from tools.reconcile.survey import pages_of
from wal import records as r

A = TypeVar("A")
B = TypeVar("B")

PAGE = 4096
KEY = b"k348"
NAME = fragment_of(KEY)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


def told(report: Report) -> list[tuple[str, list[str], str | None]]:
    return [(str(f.kind), f.on, f.key) for f in report.decoded()]


def write(directory: Path, value: bytes) -> None:
    """One update more of a key, in the log of a stopped node."""
    with read_directory(directory) as state:
        lwm, epoch = state.fragments[NAME].counter.lwm, state.partitions[NAME[1]].epoch
    append(directory, [r.Update([r.Write(*NAME, epoch, lwm, [KEY], [value])])], now_ms=NOW_MS)


# Stores.


@pytest.mark.parametrize(("page", "at"), [(0, 16), (0, 20), (1, 0), (1, 16)])
def test_a_damaged_root_page_of_a_store_is_damage_and_not_the_wrong_directory(
    page: int, at: int, stopped: list[Path], tmp_path: Path
) -> None:
    """LMDB has two root pages, and reads the newer one; but both must be pages of its own."""
    directories = copies(stopped, tmp_path)
    DAMAGES["a forged value"].do(tmp_path)
    with (directories[1] / "store" / "data.mdb").open("r+b") as file:
        file.seek(page * PAGE + at)
        file.write(bytes(24))
    report = check([str(path) for path in directories])
    assert told(report) == [("UNREADABLE", ["n2"], None), ("VALUE_MISMATCH", ["n1"], "k302")]
    unreadable = next(report.decoded())
    assert "take this node's copies from a peer" in unreadable.detail
    assert pages_of(str(directories[1])) != "", "it is found as well where LMDB is not asked"
    verified = run("wal", "verify", directories[1])
    assert verified.exit_code == 5, "damaged"
    assert "name the directory of a store" not in verified.output + unreadable.detail


def test_a_store_that_is_newer_than_its_log_is_told_and_the_others_are_compared(
    stopped: list[Path], tmp_path: Path
) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES["a forged value"].do(tmp_path)
    zero_last_blocks(directories[1], 5)
    report = check([str(path) for path in directories])
    assert told(report) == [("UNREADABLE", ["n2"], None), ("VALUE_MISMATCH", ["n1"], "k302")]
    assert "were store and wal copied at different moments?" in next(report.decoded()).detail
    assert f"{directories[1]} cannot be read" in report.summary.incomplete


def test_a_store_of_another_node_is_refused_by_its_name_alone(stopped: list[Path], tmp_path: Path) -> None:
    """It is at the LSN of the node's own, and has the same rows: by its content nobody could tell."""
    directories = copies(stopped, tmp_path)
    DAMAGES["the store of another node"].do(tmp_path)
    assert "is the store of node 'n1'" in next(check([str(path) for path in directories]).decoded()).detail
    with pytest.raises(UsageError, match=r"the store of node 'n1' in cluster '.*': expected 'n2' in .*put the node's own"):
        open_data_directory(directories[1], cluster=cluster_of(directories[1]), node=None, settings=Settings())


def test_a_store_of_an_older_version_does_not_say_whose_it_is_and_is_read(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    for directory in directories:
        with lmdb.open(str(directory / "store"), max_dbs=4) as env, env.begin(write=True) as txn:
            assert txn.delete(OWNER.encode(), db=env.open_db(NODE, txn))
    assert check([str(path) for path in directories]).exit_code == 0
    open_data_directory(directories[1], cluster=cluster_of(directories[1]), node=None, settings=Settings()).close()


def cluster_of(directory: Path) -> str:
    identity = read_identity(directory)
    assert identity is not None
    return identity.cluster


def test_two_directories_of_one_node_from_two_moments_are_refused(stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    later = Path(shutil.copytree(directories[0], tmp_path / "later"))
    write(later, b"later")
    refused = run("reconcile", "check", *directories, later)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "both belong to node 'n1': name one directory per node" in refused.stderr.replace("\n", " ")


def test_a_worker_that_a_bad_page_ends_by_a_signal_costs_that_directory_and_no_other(
    stopped: list[Path], tmp_path: Path
) -> None:
    """LMDB itself is led off its pages here: it is SIGBUS that ends the child, and nobody plays it."""
    directories = copies(stopped, tmp_path)
    DAMAGES["a forged value"].do(tmp_path)
    lead_astray(directories[1])
    died: list[str] = []

    class Watched(InChildren):
        def __call__(self, function: Callable[[A], B], items: Sequence[A]) -> Iterator[B]:
            try:
                yield from super().__call__(function, items)
            except WorkerDied as error:
                died.append(str(error))
                raise

    with unmourned():
        report = check([str(path) for path in directories], engine=Watched())
    assert died == ["a process that read the stores was ended by SIGBUS"]
    assert told(report) == [("UNREADABLE", ["n2"], None), ("VALUE_MISMATCH", ["n1"], "k302")]
    assert f"{directories[1]} cannot be read" in report.summary.incomplete


# Nodes that come and go.


class Between:
    """An engine; after the first look at the directories, and after each share, something happens to them."""

    def __init__(self, happens: Sequence[Callable[[], None]]) -> None:
        self._happens = list(happens)

    def __call__(self, function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        found: list[B] = []
        for item in items:
            if isinstance(item, Share) and self._happens:
                self._happens.pop(0)()
            found += in_this_process(function, [item])
        return found


def test_a_node_that_leaves_or_joins_during_a_check_is_no_difference(stopped: list[Path], tmp_path: Path) -> None:
    """n3 leaves the map after the first look, what is written then it does not get; later it is back, and whole."""
    two, all_three = ("n1", "n2"), ("n1", "n2", "n3")

    def leaves(paths: list[Path]) -> None:
        for path in paths[:2]:
            adopt(path, owners=two, in_sync=two)
            write(path, b"while n3 was away")

    def joins(paths: list[Path]) -> None:
        write(paths[2], b"while n3 was away")
        adopt(paths[0], owners=all_three, in_sync=all_three)  # the others have not heard of it yet

    for at, steps in enumerate([[leaves], [leaves, joins], [joins], [leaves, joins, leaves]]):
        (tmp_path / str(at)).mkdir()
        directories = copies(stopped, tmp_path / str(at))
        if steps[0] is joins:
            leaves(directories)
        happens = [partial(step, directories) for step in steps]
        paths = [str(path) for path in directories]
        report = check(paths, engine=Between(happens), shares=4, grace_seconds=10.0)  # as where nodes run
        assert told(report) == [], at
        assert report.summary.unsettled.keys <= 1
        assert told(check(paths)) == [], at


# Plans.


def test_a_plan_that_is_older_than_the_data_changes_nothing_that_was_written_since(
    stopped: list[Path], tmp_path: Path
) -> None:
    """Between the plan and its application the nodes ran, and one of the keys was written anew on all of them."""
    directories = copies(stopped, tmp_path)
    for key in (b"k348", b"k302"):
        replace(directories[1], fragment_of(key), {key: Entry(1, 1, b"forged")})
    run("reconcile", "check", *directories, "--out", tmp_path / "report")
    run("reconcile", "plan", tmp_path / "report", "-o", tmp_path / "plan")
    for directory in directories:
        write(directory, b"newer")
    applied = run("reconcile", "apply", tmp_path / "plan", *directories)
    assert (applied.exit_code, applied.stdout.splitlines()[0]) == (4, "changes=2 applied=1 changed=1")
    assert "changed k348 on n2: expected what was seen" in applied.stderr
    for directory in directories:
        with read_directory(directory) as state:
            entry = state.row(NAME, KEY, lambda _key, _what: None)
        assert entry is not None
        assert entry.value == b"newer"
    assert told(check([str(path) for path in directories])) == []
