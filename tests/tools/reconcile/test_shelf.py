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
from tools.reconcile.share import check_share, log_rows
from tools.reconcile.shelf import RUN_BYTES, Index, put_down, put_down_piece, shelved
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


def whole(wal: Path, shelf: Path, node: str, run_bytes: int = RUN_BYTES) -> dict[int, Index]:
    """All segments of a log, put down."""
    return {lsn: put_down(wal, shelf, node, lsn, run_bytes) for lsn in parts(wal)}


def heard(state: State, shelf: Path | str, above: dict[Fragment, int]) -> dict[Fragment, tuple[object, ...]]:
    """What is heard of each partition by itself, in one."""
    found: dict[Fragment, tuple[object, ...]] = {}
    for number in range(PARTITIONS):
        names = [name for name in state.fragments if name[1] == number]
        beyond = {name: above[name] for name in names if name in above}
        found |= said(log_rows(state, names, beyond, shelf=str(shelf), partitions=[number]))
    return found


@pytest.mark.parametrize("run_bytes", [1, 1_000, 32 << 20])
def test_what_lies_there_by_partition_is_what_the_log_says(run_bytes: int, segmented: list[Path], tmp_path: Path) -> None:
    for directory in segmented:
        segments = whole(directory / "wal", tmp_path, directory.name, run_bytes)
        assert len(segments) > 3
        assert (max(len(index.runs) for index in segments.values()) == 1) == (run_bytes > 1 << 20)
        with read_directory(directory) as state:
            assert segments[max(segments)].last_lsn == state.lsn
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
        whole(directory / "wal", tmp_path, "n1")
        write(lwm, b"folded")
    with read_directory(directory) as state:
        write(lwm + 1, b"after")
        above = {NAME: lwm - 1}
        (tmp_path / "again").mkdir()
        assert whole(directory / "wal", tmp_path / "again", "n1").popitem()[1].last_lsn > state.lsn
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


def test_what_is_odd_about_a_log_is_left_as_it_is(segmented: list[Path], tmp_path: Path) -> None:
    """A segment that is not there; one of which less was put down than it has now; and what was trimmed."""
    (directory,) = copies(segmented[:1], tmp_path)
    wal = directory / "wal"
    begins = parts(wal)
    all_of_it = whole(wal, tmp_path, "n1")
    assert shelved(wal, str(tmp_path), "n1") == all_of_it
    for name in ("holed", "shorter"):
        (tmp_path / name).mkdir()
    for lsn in begins[:2]:
        (wal / segment_name(lsn)).unlink()
    assert shelved(wal, str(tmp_path), "n1") == all_of_it, "it has what the log has no more"
    assert list(shelved(wal, str(tmp_path / "shorter"), "n1")) == begins[2:]
    index = next((tmp_path / "shorter").glob(f"*-{begins[3]}.index"))
    index.write_bytes(msgspec.msgpack.encode(Index(begins[4] - 2, all_of_it[begins[3]].runs)))
    assert list(shelved(wal, str(tmp_path / "shorter"), "n1")) == begins[2:4], "what is behind it is read from the log"
    for lsn in begins[2:5]:
        (wal / segment_name(lsn)).unlink()
    assert shelved(wal, str(tmp_path / "shorter"), "n1") == {}, "nobody has what lies between"
    (wal / segment_name(begins[6])).unlink()
    assert list(shelved(wal, str(tmp_path / "holed"), "n1")) == begins[5:6]
    assert shelved(wal, "", "n1") == shelved(wal, str(tmp_path / "nowhere"), "n1") == {}


def test_the_first_share_has_nothing_to_put_down(segmented: list[Path]) -> None:
    """All that shares will ask lies there before one of them begins, put down by tasks of a segment each."""
    put: list[int] = []
    named: list[str] = []

    def engine(function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        if function is put_down_piece:
            put.append(len(items))
        for item in items if function is check_share else ():
            assert isinstance(item, Share)
            named.append(" ".join(sorted(path.name for path in Path(item.shelf).glob("*.index"))))
        return in_this_process(function, items)

    assert check([str(path) for path in segmented], engine=engine, shares=8).exit_code == 0
    assert put == [len(parts(segmented[0] / "wal"))], "one log says it all"
    assert set(named) == {named[0]}, "no share has put anything down"
    assert len(named[0].split()) == put[0]


@pytest.mark.parametrize("name", sorted(ONE_OF_EACH))
def test_of_each_damage_many_say_what_one_says(name: str, stopped: list[Path], tmp_path: Path) -> None:
    """Those who come at once wait for the one who puts the log down."""
    directories = copies(stopped, tmp_path)
    DAMAGES[name].do(tmp_path)
    paths = [str(path) for path in directories if path.exists()]
    assert in_bytes(check(paths, engine=InChildren(3), shares=6)) == in_bytes(check(paths, engine=in_this_process))
