"""What somebody may point a reader at, or do to a log that is read: a sentence and the right code, never a traceback."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.commands import objects, wal
from tests.support.memory_disk import MemoryDisk
from tests.wal import golden
from tests.wal.logs import SMALL, filled, update
from tests.wal.test_fuzz import Image, Images, Spoiled
from tools.wal.jobs import runs_of
from tools.wal.places import place_of
from wal import Block, DirectoryDisk, File, Log, LogSettings, Report, inspect, list_segments, parts, verify

FIRST = "00000000000000000001.wal"
READERS = ["dump", "stat", "verify", "segments", "export"]


def _of_another_program(path: Path) -> None:
    (path / "database.wal").write_bytes(b"SQLite has those, too")


def _a_link_to_itself(path: Path) -> None:
    (path / FIRST).symlink_to(FIRST)


def _a_directory(path: Path) -> None:
    (path / FIRST).mkdir()


def _zeros(path: Path) -> None:
    (path / FIRST).write_bytes(bytes(1 << 16))


def _text(path: Path) -> None:
    (path / FIRST).write_text("lsn=1 time=2023-11-14T22:13:20.000Z boot start=0\n" * 99)


@pytest.mark.parametrize("verb", READERS)
@pytest.mark.parametrize(
    ("make", "code", "says"),
    [
        (_of_another_program, 3, "is not a data directory: expected identity.json, wal and store"),
        (_a_link_to_itself, 3, f"{FIRST}: Too many levels of symbolic links"),
        (_a_directory, 3, f"{FIRST}: Is a directory"),
        (_zeros, 5, f"damaged segment={FIRST} offset=0 lsn=1: expected the magic"),
        (_text, 5, f"damaged segment={FIRST} offset=0 lsn=1: expected the magic"),
    ],
)
def test_what_is_no_log_is_never_whole(
    verb: str, make: Callable[[Path], None], code: int, says: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.mkdir()
    make(log)
    for at, named in enumerate((log, log / ("database.wal" if make is _of_another_program else FIRST))):
        result = wal(verb, named, *(["--out", tmp_path / f"rows{at}"] if verb == "export" else []))
        assert result.exit_code == code
        assert named != log or says in result.stderr + result.stdout
        assert ": whole\n" not in result.stdout


NOBODY = 65534


@contextmanager
def as_nobody() -> Iterator[None]:
    """As somebody who may not read everything: who runs tests as root is another for a moment."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def shown(checkpointed: list[Path]) -> Iterator[Path]:
    """A data directory that anybody may read."""
    with TemporaryDirectory(prefix="foreshore-") as made:
        directory = Path(made) / "n1"
        shutil.copytree(checkpointed[0], directory)
        for path in (Path(made), directory, *directory.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield directory


@pytest.mark.parametrize("part", [".", "identity.json", "wal", f"wal/{FIRST}"])
def test_what_may_not_be_read_is_said_and_is_never_whole(part: str, shown: Path) -> None:
    """What only verify reads, and the store, it tells as damage of the store; see the test below."""
    verbs = [
        ["dump"],
        ["stat"],
        ["verify"],
        ["segments"],
        ["counters"],
        ["history"],
        ["key", "acc", "k1"],
        ["tx", "00000000"],
    ]
    for verb in verbs:  # imported by somebody who may
        assert wal(*verb, shown).exit_code in {0, 1}
    (shown / part).chmod(0)
    try:
        for verb in verbs:
            with as_nobody():
                result = wal(*verb, shown)
            assert result.exit_code == 3, (verb, result.output)
            assert result.stderr.startswith("foreshore: ")
            assert "Permission denied" in result.stderr
            assert ": whole" not in result.stdout
    finally:
        (shown / part).chmod(0o755)


@pytest.mark.parametrize("part", ["store", "store/data.mdb"])
def test_a_store_that_may_not_be_read_is_said_by_who_needs_it(part: str, shown: Path) -> None:
    needs = [["verify"], ["verify", "--store-only"], ["counters"], ["history"]]
    for verb in [*needs, ["dump"]]:
        assert wal(*verb, shown).exit_code == 0
    (shown / part).chmod(0)
    try:
        for verb in needs:
            with as_nobody():
                result = wal(*verb, shown)
            assert result.exit_code == 3, (verb, result.output)
            assert "Permission denied" in result.stdout + result.stderr
            assert ": whole" not in result.stdout
        with as_nobody():
            assert wal("dump", shown).exit_code == 0, "it needs no store"
    finally:
        (shown / part).chmod(0o755)


def test_logs_that_do_not_belong_together_are_told_apart_by_code_and_sentence(tmp_path: Path) -> None:
    same = [[update(at + 1, 60)] for at in range(20)]
    one = filled([*same, *([update(at + 21, 60)] for at in range(20))])
    parted = filled([*same, *([update(at + 21, 61)] for at in range(20))])
    other = MemoryDisk()
    with closing(Log.open(other, cluster="others", node="n1", settings=SMALL)) as log:
        for block in [*same, *same]:
            log.append(block, now_ms=1, durable=True)
            if log.wants_next:
                log.prepare_next()
    names = [name for name in one.names() if name.endswith(".wal")]
    assert names[1:3] == [name for name in parted.names() if name.endswith(".wal")][1:3]
    for at, (beside, says) in enumerate(((parted, "replaced segment="), (other, "foreign segment="))):
        log_path = tmp_path / f"log{at}"
        log_path.mkdir()
        for name in names:
            (log_path / name).write_bytes(one.image(name))
        assert wal("verify", log_path).exit_code == 0
        (log_path / names[2]).write_bytes(beside.image(names[2]))
        for verb in ("verify", "dump", "stat"):
            result = wal(verb, log_path)
            assert (result.exit_code, says in result.stdout + result.stderr) == (6, True), result.output


def test_a_clock_that_went_back_changes_no_order(tmp_path: Path) -> None:
    with_time = LogSettings(segment_bytes=4 << 10, total_bytes=1 << 20)
    log = Log.open(DirectoryDisk(tmp_path / "wal"), cluster="tests", node="n1", settings=with_time)
    for at in range(60):
        if log.wants_next:
            log.prepare_next()
        log.append([update(at + 1)], now_ms=1_000_000 - at * 10_000, durable=True)
    log.close()
    told = objects("dump", tmp_path / "wal")
    assert [item["lsn"] for item in told] == list(range(1, 61))
    assert [item["time_ms"] for item in told] == sorted((int(str(item["time_ms"])) for item in told), reverse=True)
    assert objects("dump", tmp_path / "wal", "--from-time", "1970-01-01T00:16:00Z") == told[:5]
    (head, *_) = objects("stat", tmp_path / "wal")
    assert (head["from"], head["to"]) == (told[-1]["time"], told[0]["time"])
    assert wal("verify", tmp_path / "wal").exit_code == 0


class Shrinking(Spoiled):
    """After so many reads every file has only half of its bytes."""

    def __init__(self, images: Images, reads: int) -> None:
        super().__init__(images)
        self.left = reads

    def open(self, name: str, write: bool = False) -> File:
        return _Half(self, super().open(name, write))


class _Half(Image):
    def __init__(self, disk: Shrinking, file: File) -> None:
        super().__init__(file.read(0, file.size()))
        self._disk = disk

    def read(self, offset: int, n: int) -> bytes:
        self._disk.left -= 1
        return super().read(offset, min(n, max(0, self.size() - offset)))

    def size(self) -> int:
        return super().size() // (1 if self._disk.left >= 0 else 2)


def test_a_file_that_shrinks_while_it_is_read_is_told_and_what_was_read_is_right() -> None:
    images = {path.name: path.read_bytes() for path in sorted(golden.DIRECTORY.iterdir())}
    known = {found.first_lsn: found.records for found in inspect(Spoiled(images)) if isinstance(found, Block)}
    short: list[Report] = []
    for reads in range(40):
        found = [one for one in inspect(Shrinking(images, reads)) if isinstance(one, Block)]
        assert all(known[block.first_lsn] == block.records for block in found)
        report = verify(Shrinking(images, reads))
        assert report.findings or report.records == sum(map(len, known.values()))
        list_segments(Shrinking(images, reads))
        short += [report] if report.findings else []
    assert short


class Opened(Spoiled):
    """Counts how often a file is opened."""

    def __init__(self, images: Images) -> None:
        super().__init__(images)
        self.times = 0

    def open(self, name: str, write: bool = False) -> File:
        self.times += 1
        return super().open(name, write)


def test_hundreds_of_segments_are_read_in_their_order_and_a_part_costs_no_more_than_it_has(tmp_path: Path) -> None:
    disk = filled([[update(at + 1)] * 8 for at in range(500)], LogSettings(segment_bytes=1 << 10, total_bytes=1 << 30))
    assert len(list_segments(disk)) >= 250
    report = verify(disk)
    assert report.findings == []
    assert (report.records, len(report.segments)) == (4_000, len(list_segments(disk)))
    opened = Opened({name: disk.image(name) for name in disk.names()})
    for at, one in enumerate(parts(opened)):
        if at % 25 == 1:
            opened.times = 0
            assert len(list(inspect(opened, segment=one))) >= 1
            assert opened.times <= 6, "the first of all, itself twice, and its neighbours"

    for name in disk.names():
        (tmp_path / name).write_bytes(disk.image(name))
    runs = runs_of(place_of(str(tmp_path)), 2)
    assert len(runs) <= 20, "a process for each would cost more than reading them"
    assert [run.segment for run in runs[1:]] == [run.until for run in runs[:-1]]
    assert wal("stat", tmp_path, "--jobs", "2").stdout == wal("stat", tmp_path).stdout


@pytest.fixture
def few_files_at_once() -> Iterator[None]:
    """A thousand, wherever a machine allows more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_files_at_once")
def test_three_thousand_segments_are_read_by_each_reader(tmp_path: Path) -> None:
    """More than a process may have open, or functions that call each other, at once."""
    count = 3_000
    disk = filled([[update(at + 1, 400)] for at in range(count)], LogSettings(segment_bytes=1 << 10, total_bytes=1 << 30))
    for name in disk.names():
        (tmp_path / name).write_bytes(disk.image(name))
    (head, *_) = objects("stat", tmp_path)
    assert (head["segments"], head["records"]) == (count, count)
    *_, last = objects("segments", tmp_path)
    assert last["first_lsn"] == count
    assert [one["lsn"] for one in objects("dump", tmp_path, "--last", "2")] == [count - 1, count]
    assert wal("verify", tmp_path).exit_code == 0
    (tmp_path / disk.names()[count // 2]).unlink()
    assert wal("verify", tmp_path).exit_code == 6


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["dump", "--last", 10**30], 0, ""),
        (["dump", "--limit", 10**30, "--from-lsn", 10**30], 0, ""),
        (["counters", "--limit", 10**30], 0, "fragments="),
        (["history", "--limit", 10**30], 0, ""),
        (["stat", "--top", 10**30], 0, ""),
        (["tx", "--last", 10**30], 0, ""),
        (["key", "", "k1"], 2, "'' is no namespace: expected a name of 1 to 64 bytes"),
        (["key", "n" * 70_000, "k1"], 2, "is no namespace"),
        (["key", "\udcff" * 30, "k1"], 2, "is no namespace"),
        (["tx", ""], 2, "'' is no transaction"),
    ],
)
def test_a_number_or_a_name_that_nothing_has_ends_in_an_answer(
    words: list[object], code: int, says: str, checkpointed: list[Path]
) -> None:
    """Also what a script asks whose variable is empty."""
    result = wal(*words, checkpointed[0])
    assert result.exit_code == code, result.exception
    assert says in result.stderr


def test_a_directory_that_does_not_say_whose_it_is_is_told_by_all_that_read_its_log(shown: Path) -> None:
    (shown / "identity.json").write_text('{"format":1')
    for verb in ("dump", "dump --jobs 2", "stat", "verify", "segments", "key acc k1", "tx --last 1"):
        name, *words = verb.split()
        result = wal(name, *words, shown)
        assert result.exit_code == 5, verb
        assert (result.stdout + result.stderr).count("identity.json cannot be read") == 1, verb


def test_the_log_of_a_directory_that_is_not_there_is_missed_by_all_readers(shown: Path) -> None:
    (shown / "wal" / FIRST).unlink()
    for verb in ("dump", "dump --jobs 2", "stat", "verify", "segments", "key acc k1", "tx --last 1"):
        name, *words = verb.split()
        result = wal(name, *words, shown)
        assert result.exit_code == 6, verb
        assert (result.stdout + result.stderr).count("wal has no segment") == 1, verb


@pytest.mark.parametrize("verb", ["dump", "stat", "verify", "segments", "tx --last 1"])
def test_nobody_waits_at_a_pipe_that_is_called_like_a_segment(verb: str, shown: Path) -> None:
    os.mkfifo(shown / "wal" / "00000000000099999999.wal")
    name, *words = verb.split()
    result = wal(name, *words, shown)
    assert result.exit_code == 3
    assert "00000000000099999999.wal" in result.stderr


def _a_pipe_in_it(path: Path) -> None:
    path.mkdir()
    os.mkfifo(path / "data.mdb")


@pytest.mark.parametrize("make", [Path.touch, _a_pipe_in_it])
def test_what_is_no_store_is_told_by_who_verifies(make: Callable[[Path], object], shown: Path) -> None:
    shutil.rmtree(shown / "store")
    make(shown / "store")
    for verb in (["verify"], ["verify", "--store-only"], ["counters"]):
        result = wal(*verb, shown)
        assert result.exit_code == 5, result.exception
        assert "is not a store: expected a directory with data.mdb" in result.stdout + result.stderr


@pytest.mark.parametrize("words", [[], ["--partition", "3"]])
@pytest.mark.parametrize("make", [Path.touch, _a_pipe_in_it])
def test_a_store_that_is_left_out_of_a_story_is_told_once_and_is_the_exit_code(
    make: Callable[[Path], object], words: list[str], shown: Path
) -> None:
    shutil.rmtree(shown / "store")
    make(shown / "store")
    result = wal("key", "acc", "k1", shown, *words)
    assert result.exit_code == 5, result.exception
    assert result.stderr.count("the store is left out") == 1
    if not words:
        assert "key k1: last written at " in result.stdout, "what the log says is told all the same"
