"""A log by partition, for many shares: it says what the log says, spares readings, and is not missed where it cannot be."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from engine.offline.directory import State, read_directory
from engine.turn.settings import Settings
from tests.support.damages import DAMAGES, ONE_OF_EACH
from tests.support.directories import build, copies
from tests.support.reconciled import NOW_MS, PARTITIONS, fragment_of, story
from tools.reconcile import Report, check, in_this_process
from tools.reconcile.children import InChildren
from tools.reconcile.plan import Share
from tools.reconcile.share import log_rows
from tools.reconcile.shelf import Index, put_down, shelved
from tools.wal.rows import LogRows
from wal import DirectoryDisk, Log, LogSettings, parts
from wal import records as r
from wal.ids import Fragment
from wal.segment import segment_name

A = TypeVar("A")
B = TypeVar("B")

KEY = b"k348"
NAME = fragment_of(KEY)


@pytest.fixture(scope="module")
def segmented(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The story that is damaged, in logs of many segments."""
    settings = Settings(partitions=PARTITIONS, wal_segment_bytes=8 << 10)
    return build(tmp_path_factory.mktemp("segmented"), story, settings=settings, stop=True)


def in_bytes(report: Report) -> tuple[bytes, bytes]:
    return report.findings_bytes(), report.summary_bytes()


def said(rows: LogRows) -> dict[Fragment, tuple[object, ...]]:
    fragments = rows.fragments.items()
    return {name: (one.said, one.later, one.before, one.unknown, one.highest, one.filled) for name, one in fragments}


def heard(state: State, shelf: Path | str, above: dict[Fragment, int]) -> dict[Fragment, tuple[object, ...]]:
    """What is heard of each partition by itself, in one."""
    found: dict[Fragment, tuple[object, ...]] = {}
    for number in range(PARTITIONS):
        names = [name for name in state.fragments if name[1] == number]
        beyond = {name: above[name] for name in names if name in above}
        found |= said(log_rows(state, names, beyond, shelf=str(shelf), partitions=[number]))
    return found


@pytest.mark.parametrize("run_bytes", [1, 5_000, 32 << 20])
def test_what_lies_there_by_partition_is_what_the_log_says(run_bytes: int, segmented: list[Path], tmp_path: Path) -> None:
    for directory in segmented:
        index = put_down(directory / "wal", tmp_path, directory.name, run_bytes)
        assert len(index.runs) == 1 if run_bytes > 1 << 20 else len(index.runs) > 3
        with read_directory(directory) as state:
            assert index.last_lsn == state.lsn
            assert heard(state, tmp_path, {}) == heard(state, "", {}) == said(log_rows(state, state.fragments, {}))


def test_what_came_later_is_read_from_the_log(segmented: list[Path], tmp_path: Path) -> None:
    """Some of it before the directory is folded, some after; of a fragment with copies that are apart all is kept."""
    (directory,) = copies(segmented[:1], tmp_path)

    def write(counter: int, value: bytes) -> None:
        with DirectoryDisk(directory / "wal") as disk:
            log = Log.open(disk, cluster="foreshore", node="n1", settings=LogSettings())
            log.append([r.Update([r.Write(*NAME, 1, counter, [KEY], [value])])], now_ms=NOW_MS, durable=True)
            log.close()

    with read_directory(directory) as state:
        lwm = state.fragments[NAME].counter.lwm
        put_down(directory / "wal", tmp_path, "n1")
        write(lwm, b"folded")
    with read_directory(directory) as state:
        write(lwm + 1, b"after")
        above = {NAME: lwm - 1}
        (tmp_path / "again").mkdir()
        assert put_down(directory / "wal", tmp_path / "again", "n1").last_lsn > state.lsn
        told = said(log_rows(state, state.fragments, above))
        assert heard(state, tmp_path, above)[NAME] == told[NAME]
        assert heard(state, tmp_path / "again", above)[NAME] == told[NAME], "what is beyond the fold is later here, too"
        assert heard(state, tmp_path / "again", {}) == heard(state, "", {})


class Between:
    """An engine; after the first share something happens."""

    def __init__(self, happens: Callable[[Share], None]) -> None:
        self._happens = happens
        self.shares = 0

    def __call__(self, function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        found: list[B] = []
        for item in items:
            found += in_this_process(function, [item])
            if isinstance(item, Share):
                self.shares += 1
                if self.shares == 1:
                    self._happens(item)
        return found


def test_shares_read_a_log_once(segmented: list[Path], tmp_path: Path) -> None:
    """After the first one the logs are away, and the others do not miss them."""
    directories = copies(segmented, tmp_path)
    paths = [str(path) for path in directories]

    def happens(share: Share) -> None:
        assert set(share.at_rest) == {"n1", "n2", "n3"}, "their checkpoints have all"
        for directory in directories:
            for file in (directory / "wal").iterdir():
                file.unlink()

    between = Between(happens)
    report = check(paths, engine=between, shares=8)
    assert (report.exit_code, between.shares > 4) == (0, True)
    assert report.summary.keys == check([str(path) for path in segmented]).summary.keys


def test_a_log_that_is_not_put_down_is_read(segmented: list[Path], tmp_path: Path) -> None:
    """The folder is not to be seen, or nothing can be written there."""
    directories = copies(segmented, tmp_path)
    DAMAGES["several rows"].do(tmp_path)
    paths = [str(path) for path in directories]
    whole = check(paths, engine=in_this_process)

    def away(share: Share) -> None:
        shutil.rmtree(share.shelf)

    def in_the_way(share: Share) -> None:
        shutil.rmtree(share.shelf)
        Path(share.shelf).mkdir()
        Path(share.shelf).chmod(0)  # the superuser may write there all the same

    for happens in (away, in_the_way):
        assert in_bytes(check(paths, engine=Between(happens), shares=8)) == in_bytes(whole)


def test_what_is_odd_about_a_log_leaves_it_as_it_is(segmented: list[Path], tmp_path: Path) -> None:
    """A part of it that is not there; and one that was trimmed behind what was put down."""
    (directory,) = copies(segmented[:1], tmp_path)
    wal = directory / "wal"
    whole = put_down(wal, tmp_path, "n1")
    assert shelved(wal, str(tmp_path), "n1") == whole
    begins = parts(wal)
    shorter = Index(begins[2] - 2, whole.runs)
    for lsn in begins[:2]:
        (wal / segment_name(lsn)).unlink()
    assert shelved(wal, str(tmp_path), "n1") == whole, "it has what the log has no more"
    (tmp_path / "later").mkdir()
    assert put_down(wal, tmp_path / "later", "n1").last_lsn == whole.last_lsn
    next(tmp_path.glob("*.index")).write_bytes(msgspec.msgpack.encode(shorter))
    assert shelved(wal, str(tmp_path), "n1") == Index(), "nobody has what lies between"
    (tmp_path / "holed").mkdir()
    (wal / segment_name(begins[4])).unlink()
    assert put_down(wal, tmp_path / "holed", "n1") == Index()
    assert shelved(wal, "", "n1") == shelved(wal, str(tmp_path / "nowhere"), "n1") == Index()


@pytest.mark.parametrize("name", sorted(ONE_OF_EACH))
def test_of_each_damage_many_say_what_one_says(name: str, stopped: list[Path], tmp_path: Path) -> None:
    """Those who come at once wait for the one who puts the log down."""
    directories = copies(stopped, tmp_path)
    DAMAGES[name].do(tmp_path)
    paths = [str(path) for path in directories if path.exists()]
    assert in_bytes(check(paths, engine=InChildren(3), shares=6)) == in_bytes(check(paths, engine=in_this_process))
