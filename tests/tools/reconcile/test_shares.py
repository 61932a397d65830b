"""However the work is cut, by partitions, keys of a heavy fragment or segments of logs, the same is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from engine import aio
from engine.offline.directory import read_directory
from engine.state.store import Entry
from engine.turn.settings import Settings
from tests.support.damages import DAMAGES, ONE_OF_EACH
from tests.support.directories import append, build, copies, flip, lose, replace
from tests.support.reconciled import NOW_MS, PARTITIONS, story
from tools.reconcile import Report, check, in_this_process
from tools.reconcile.copies import Level
from tools.reconcile.evidence import Asked, ask
from tools.reconcile.findings import raw_key
from tools.reconcile.logs import Stretch, read_stretch
from tools.reconcile.plan import Share
from tools.reconcile.share import check_share, log_rows
from tools.reconcile.survey import SHARE_WEIGHT, shares_of
from tools.wal.rows import audited
from wal import Block, DirectoryDisk, Log, LogSettings, inspect, parts
from wal import records as r
from wal.ids import Fragment, partition_of
from wal.segment import segment_name

A = TypeVar("A")
B = TypeVar("B")

HOT = ("acc", partition_of(b"{hot}0", PARTITIONS))
SHARES = 16
LOG = LogSettings(segment_bytes=8 << 10, total_bytes=64 << 20)


class Noting:
    """An engine that notes what it is given."""

    def __init__(self) -> None:
        self.shares: list[Share] = []
        self.stretches: list[Stretch] = []

    def __call__(self, function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        self.shares += [item for item in items if isinstance(item, Share)]
        self.stretches += [item for item in items if isinstance(item, Stretch)]
        return in_this_process(function, items)


async def hot(database: aio.Database) -> None:
    """One fragment has more keys than all others together, and another namespace has some beside it."""
    acc, bank = database.namespace("acc"), database.namespace("bank")
    await acc.put_many({b"{hot}%d" % at: b"value of hot %d." % at for at in range(1_200)})
    await acc.put_many({b"k%d" % at: b"value of k%d." % at for at in range(300)})
    await bank.put_many({b"{hot}%d" % at: b"beside" for at in range(20)})
    await acc.delete(b"{hot}7")
    for at in range(20):
        async with database.transaction() as tx:
            await tx.namespace("acc").put(b"{hot}%d" % at, b"tx %d" % at)
            await tx.namespace("bank").put(b"b%d" % at, bytes(30))


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three stopped nodes with a heavy fragment."""
    settings = Settings(partitions=PARTITIONS, wal_segment_bytes=16 << 10)
    return build(tmp_path_factory.mktemp("skewed"), hot, settings=settings, stop=True)


@pytest.fixture(scope="module")
def segmented(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The story that is damaged, in logs of many segments."""
    settings = Settings(partitions=PARTITIONS, wal_segment_bytes=8 << 10)
    return build(tmp_path_factory.mktemp("segmented"), story, settings=settings, stop=True)


def in_bytes(report: Report) -> tuple[bytes, bytes]:
    return report.findings_bytes(), report.summary_bytes()


def test_a_heavy_fragment_is_cut_by_keys_and_the_same_is_said(skewed: list[Path], tmp_path: Path) -> None:
    directories = copies(skewed, tmp_path)
    n1, n2, n3 = directories
    replace(n1, HOT, {b"{hot}100": Entry(1, 101, b"forged"), b"{hot}1100": None, b"{hot}elsewhere": Entry(1, 1, b"?")})
    replace(n3, HOT, {b"{hot}%d" % at: None for at in range(300, 900, 50)})
    for namespace in ("acc", "bank"):
        replace(n2, (namespace, HOT[1]), {b"zz": Entry(1, 1, b"?")})
    lose(n3, HOT, b"{hot}555")
    assert flip(n2, b"value of hot 777.")
    paths, noting = [str(path) for path in directories], Noting()
    whole = check(paths, engine=in_this_process)
    assert in_bytes(check(paths, engine=noting, shares=SHARES)) == in_bytes(whole)
    pieces = [share for share in noting.shares if HOT in share.ranges]
    assert len(pieces) >= SHARES // 2, "a fragment with more than half of the keys is more than half of the shares"
    bounds = [share.ranges[HOT] for share in pieces]
    assert all(before[1] == after[0] for before, after in pairwise(bounds))
    assert {f.kind for f in whole.decoded()} >= {
        "CONTENTS_MISMATCH",
        "UNREADABLE",
        "VALUE_MISMATCH",
        "MISSING_ON",
        "EXTRA_ON",
    }


def test_what_is_on_its_way_in_a_heavy_fragment_is_looked_at_again(skewed: list[Path], tmp_path: Path) -> None:
    directories = copies(skewed, tmp_path)
    writes = [r.Write(*HOT, 1, 1_221 + at, [b"{hot}%d" % (at * 37)], [b"later"]) for at in range(30)]
    append(directories[0], [r.Update(writes)], now_ms=NOW_MS)
    paths = [str(path) for path in directories]
    for recheck in (0, 1):
        one, many = (check(paths, engine=in_this_process, shares=n, recheck=recheck, grace_seconds=60) for n in (1, SHARES))
        assert in_bytes(many) == in_bytes(one)


def test_a_log_is_read_by_segments_and_the_same_is_told(segmented: list[Path]) -> None:
    for path in segmented:
        log = Stretch(str(path), ("c", path.name), 0)
        starts = parts(path / "wal")
        assert len(starts) > 2, "a log of one segment shows nothing"
        together = read_stretch(msgspec.structs.replace(log, segment=starts[0]))
        for lsn in starts[1:]:
            together = together.then(read_stretch(msgspec.structs.replace(log, segment=lsn)))
        assert together.told() == read_stretch(log).told()


@pytest.mark.parametrize(
    "name",
    ["a damaged log", "committed here and rolled back there, on all copies", "committed here and never heard of there"],
)
def test_damages_that_logs_tell_of_are_told_alike_by_one_and_by_many(
    name: str, segmented: list[Path], tmp_path: Path
) -> None:
    directories = [str(path) for path in copies(segmented, tmp_path)]
    DAMAGES[name].do(tmp_path)
    noting = Noting()
    assert in_bytes(check(directories, engine=noting, shares=4)) == in_bytes(check(directories, engine=in_this_process))
    assert len(noting.stretches) > len(directories), "each log is read by several tasks"


def test_each_finding_is_attributed_wherever_its_record_stands(segmented: list[Path], tmp_path: Path) -> None:
    """Written by one update or by a transaction, which is prepared in one block and committed in another."""
    directories = copies(segmented, tmp_path)
    forged: dict[Fragment, dict[bytes, Entry | None]] = {}
    with read_directory(directories[1]) as state:
        for name in sorted(state.fragments):
            if name[0] in ("acc", "bank"):
                rows = list(state.rows(name, lambda _key, _what: None))
                forged[name] = {k: msgspec.structs.replace(e, value=b"forged") for k, e in rows[::3] if e.value is not None}
    for name, changed in forged.items():
        replace(directories[1], name, changed)
    written: dict[tuple[str, bytes, int], int] = {}  # the record that has a counter, in the log of n1
    prepared: dict[tuple[bytes, int], tuple[int, list[r.Write]]] = {}
    for block in inspect(directories[0] / "wal"):
        for lsn, record in enumerate(block.records, block.first_lsn) if isinstance(block, Block) else ():
            match record:
                case r.Update(writes) | r.History(writes):
                    pass
                case r.Prepare(tx, partition, writes=writes):
                    prepared[tx, partition] = (lsn, writes)
                    continue
                case r.Outcome(tx, partition, commit=True):
                    lsn, writes = prepared.pop((tx, partition))  # noqa: PLW2901  # it is written in the prepare
                case _:
                    continue
            for write in writes:
                for counter, key in enumerate(write.keys, write.start + 1):
                    written[write.namespace, key, counter] = lsn
    found = list(check([str(path) for path in directories], engine=in_this_process).decoded())
    assert len(found) == sum(map(len, forged.values())) > 150
    for finding in found:
        of = finding.right["counter"]
        assert isinstance(of, int)
        assert {facts["counter"] for facts in finding.evidence.values()} == {of}
        assert finding.evidence["n1"]["lsn"] == written[finding.namespace, raw_key(finding.key or ""), of]
    assert {str(facts["record"]) for f in found for facts in f.evidence.values()} == {"update", "prepare"}


def test_a_record_that_came_out_of_order_is_found_by_a_second_look(segmented: list[Path], tmp_path: Path) -> None:
    (path,) = copies(segmented[:1], tmp_path)
    namespace, number = HOT
    with read_directory(path) as state:
        lwm, epoch = state.fragments[HOT].counter.lwm, state.partitions[number].epoch
    later = [r.Write(namespace, number, epoch, lwm + at, [b"later"], [bytes(99)]) for at in range(1, 13)]
    for write in (*later, r.Write(namespace, number, epoch, lwm, [b"late"], [b"v"]), *later[-1:] * 40):
        append(path, [r.Update([write])], now_ms=NOW_MS, segment_bytes=8 << 10)
    with read_directory(path) as state:
        sought = Asked(state.fragments[HOT].epochs, [b"late"], (), {b"late": lwm + 1})
        assert sought.sought == [lwm + 1]
        ask(state, {HOT: sought})
    assert (sought.is_answered, sought.newest[b"late"].value) == (True, b"v")


def test_partitions_that_say_the_same_of_themselves_cost_no_task(stopped: list[Path], tmp_path: Path) -> None:
    noting = Noting()
    report = check([str(path) for path in stopped], level=Level.DIGEST, engine=noting)
    assert (report.exit_code, noting.shares) == (0, [])
    directories = copies(stopped, tmp_path)
    DAMAGES["a forged value"].do(tmp_path)
    report = check([str(path) for path in directories], level=Level.DIGEST, engine=noting)
    assert (report.exit_code, [len(share.partitions) for share in noting.shares]) == (1, [1])


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_by_digests_the_same_copies_are_counted(name: str, stopped: list[Path], tmp_path: Path) -> None:
    directories = copies(stopped, tmp_path)
    DAMAGES[name].do(tmp_path)
    paths = [str(path) for path in directories if path.exists()]
    whole, brief = (check(paths, engine=in_this_process, level=level).summary for level in Level)
    for field in ("fragments", "copies", "copies_known", "alone", "lost", "apart", "absent"):
        assert getattr(brief, field) == getattr(whole, field), field


def test_who_shares_the_work_reads_no_log_for_what_came_after_a_checkpoint_that_has_all(
    stopped: list[Path], running: list[Path], tmp_path: Path
) -> None:
    """The first look has seen to the end of each log; where a node may run, there may be more by now."""
    ahead = copies(stopped, tmp_path)
    append(ahead[1], [r.Update([r.Write(*HOT, 1, 900, [b"later"], [b""])])], now_ms=NOW_MS)
    told: list[tuple[list[Path], float | None, list[str]]] = [
        (stopped, None, ["n1", "n2", "n3"]),
        (stopped, 10.0, []),
        (running, None, []),
        (ahead, None, ["n1", "n3"]),
    ]
    for directories, grace_seconds, at_rest in told:
        noting = Noting()
        check([str(path) for path in directories], engine=noting, grace_seconds=grace_seconds, shares=2)
        assert [share.at_rest for share in noting.shares] == [at_rest] * 2
    stands: list[tuple[bool, int]] = []
    for log in (False, True):
        with read_directory(ahead[1], log=log) as state:
            stands.append((state.lsn > state.checkpoint_lsn, state.fragments[HOT].counter.hwm))
    assert stands == [(False, stands[0][1]), (True, 901)]
    assert stands[0][1] < 900


def test_every_row_is_read_by_one_share(skewed: list[Path]) -> None:
    noting = Noting()
    whole = check([str(path) for path in skewed], engine=noting, shares=SHARES)
    homes = [number for share in noting.shares if share.piece is None for number in share.partitions]
    assert sorted(homes) == list(range(PARTITIONS))
    keys = [sum(t.keys for t in check_share(share).counts.namespaces.values()) for share in noting.shares]
    assert sum(keys) == whole.summary.keys
    assert max(keys) < 2 * sum(keys) / SHARES


class Trims:
    """All fragments; as soon as it is asked of the first record, the node trims the first segments of its log."""

    def __init__(self, directory: Path, segments: int) -> None:
        self._wal, self._segments = directory / "wal", segments
        self._gone = parts(self._wal)[:segments]
        self._directory = directory

    def __contains__(self, name: object) -> bool:
        if self._gone:
            first = parts(self._wal)[self._segments]
            dropped: dict[Fragment, int] = {}
            for block in inspect(self._wal, 1, first - 1):
                for record in block.records if isinstance(block, Block) else ():
                    for write in record.writes if isinstance(record, r.Update | r.Prepare) else ():
                        dropped[write.fragment] = max(dropped.get(write.fragment, 0), write.end)
            with DirectoryDisk(self._wal) as disk:
                log = Log.open(disk, cluster="foreshore", node=self._directory.name, settings=LOG)
                log.append([r.Trimmed(first, [(*at, to) for at, to in dropped.items()])], now_ms=NOW_MS, durable=True)
                log.close()
            for lsn in self._gone:
                (self._wal / segment_name(lsn)).unlink()
            self._gone = []
        return True


@pytest.mark.parametrize("segments", [1, 3])
def test_a_log_that_is_trimmed_while_it_is_heard_says_nothing_that_it_does_not_know(
    segments: int, segmented: list[Path], tmp_path: Path
) -> None:
    """The first segment is read to its end, and those behind it are gone, with what was written and deleted there."""
    (directory,) = copies(segmented[:1], tmp_path)
    with read_directory(directory) as state:
        whole = log_rows(state, state.fragments, {})
        before = {name: view.history_from for name, view in state.fragments.items()}
        known = {name: dict(whole.fragments[name].said) for name in whole.fragments}
        log = log_rows(state, Trims(directory, segments), dict.fromkeys(state.fragments, 1))
        after = {name: view.history_from for name, view in state.fragments.items()}
        assert any(after[name] > before[name] for name in after), "something went"
        for name, said in log.fragments.items():
            assert list(audited(state.rows(name, lambda _key, _what: None), said, after[name])) == []
            kept = {key: one for key, one in known[name].items() if one.counter > after[name]}
            assert said.said == kept, name


@pytest.mark.parametrize("live", [True, False])
def test_a_log_that_is_trimmed_while_it_is_read_is_damaged_only_if_no_node_runs(
    live: bool, segmented: list[Path], tmp_path: Path
) -> None:
    (directory,) = copies(segmented[:1], tmp_path)
    begun = parts(directory / "wal")
    for lsn in begun[1:3]:
        (directory / "wal" / segment_name(lsn)).unlink()
    stretch = Stretch(str(directory), ("foreshore", "n1"), 0, live=live)
    assert read_stretch(stretch).damage, "the first segment is there, and those behind it are not"
    (directory / "wal" / segment_name(begun[0])).rename(tmp_path / "first")
    told = read_stretch(stretch)
    assert told.damage == []
    assert told.first_lsn == begun[3]


def test_there_are_as_many_shares_for_each_who_works_at_a_time() -> None:
    """Three shares among two workers would be as slow as two for one of them."""
    assert [shares_of(2 * SHARE_WEIGHT + 1, workers) for workers in (0, 1, 2, 3, 4)] == [3, 3, 4, 3, 4]
    assert [shares_of(0, workers) for workers in (0, 1, 8)] == [1, 1, 8]
