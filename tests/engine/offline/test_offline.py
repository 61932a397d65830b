"""A data directory, read from its files: the same as the node had, in whole and in shares, and clear about damage."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

import engine.aio
from engine.errors import CorruptionError, UsageError
from engine.offline.directory import State, read_directory
from engine.offline.live import is_live
from engine.offline.refusals import DoesNotFold
from engine.state.store import Entry
from rebalance.contents import rows_digest
from tests.support.directories import append, flip, lose, replace
from wal import list_segments
from wal import records as r
from wal.ids import DECISIONS, Fragment, partition_of

PARTITIONS = 8
KEYS = [b"k%03d" % at for at in range(200)]
LATER = [b"z%03d" % at for at in range(100)]
NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a node that is killed leaves: a checkpoint, and a log that goes on after it."""
    root = tmp_path_factory.mktemp("offline")
    asyncio.run(_write(root / "live", root / "left"))
    return root / "left"


@pytest.fixture
def directory(left: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(left, tmp_path / "node"))


async def _write(path: Path, left: Path) -> None:
    async with await engine.aio.open(path, partitions=PARTITIONS) as database:
        for name in ("acc", "bank"):
            await database.namespace(name).put_many({key: b"1" + key for key in KEYS})
            # With the next write these are settled, and no longer in the fragments' tails: the rows alone have them.
            await database.namespace(name).put_many(dict.fromkeys(LATER, b"later"))
    async with await engine.aio.open(path, partitions=PARTITIONS) as database:
        await database.namespace("acc").delete_many(KEYS[:20])
        await database.namespace("acc").put_many({key: b"2" + key for key in KEYS[100:]})
        async with database.transaction() as tx:
            await tx.namespace("acc").put(KEYS[30], b"tx")
            await tx.namespace("bank").put(KEYS[31], b"tx")
        for name, key in (("acc", KEYS[30]), ("bank", KEYS[31])):
            assert await database.namespace(name).get(key) == b"tx"  # which waits for the outcome in its partition
        shutil.copytree(path, left, ignore=shutil.ignore_patterns("*.tmp"))  # which come and go


def rows_of(state: State) -> dict[tuple[Fragment, bytes], Entry]:
    return {(name, key): entry for name in state.fragments for key, entry in state.rows(name, _no_damage)}


def _no_damage(key: bytes | None, what: str) -> None:
    raise AssertionError(f"{key!r}: {what}")


def where(key: bytes) -> Fragment:
    return ("acc", partition_of(key, PARTITIONS))


# What is there.


def test_the_newest_entries_are_what_the_application_wrote(left: Path) -> None:
    with read_directory(left) as state:
        assert state.lsn > state.checkpoint_lsn > 0
        rows = rows_of(state)
    values = {key: entry.value for (name, key), entry in rows.items() if name[0] == "acc"}
    expected: dict[bytes, bytes | None] = dict.fromkeys(LATER, b"later")
    expected |= (
        {key: b"1" + key for key in KEYS}
        | {key: b"2" + key for key in KEYS[100:]}
        | dict.fromkeys(KEYS[:20])
        | {KEYS[30]: b"tx"}
    )
    assert values == expected


def test_rows_come_in_order_and_under_their_fragment(left: Path) -> None:
    with read_directory(left) as state:
        for name in state.fragments:
            keys = [key for key, _ in state.rows(name, _no_damage)]
            assert keys == sorted(keys)
            assert name[0] == DECISIONS or all(partition_of(key, PARTITIONS) == name[1] for key in keys)


def test_the_state_says_whose_it_is_and_what_it_counts(left: Path) -> None:
    with read_directory(left) as state:
        assert state.topology is not None
        assert state.topology.partitions == PARTITIONS
        assert state.topology.placements[0].in_sync == (state.identity.node,)
        assert state.topology.allocations[state.identity.node] == state.identity.allocation
        view = state.fragments[where(KEYS[0])]
        assert view.counter.lwm == view.counter.hwm > 0
        assert [epoch for epoch, _ in view.epochs] == [1, 2], "it was started twice"
        assert view.digests[view.counter.lwm]
        assert NOW_MS < view.touched_ms <= state.time_ms


def test_shares_add_up_to_the_whole(left: Path) -> None:
    with read_directory(left) as whole:
        rows, fragments, partitions = rows_of(whole), whole.fragments, whole.partitions
    found: dict[tuple[Fragment, bytes], Entry] = {}
    for share in (range(3), range(3, 4), range(4, PARTITIONS)):
        with read_directory(left, partitions=share) as state:
            assert {name[1] for name in state.fragments} <= set(share)
            assert state.fragments == {name: view for name, view in fragments.items() if name[1] in share}
            assert state.partitions == {number: view for number, view in partitions.items() if number in share}
            found |= rows_of(state)
    assert found == rows


def test_a_share_of_namespaces_has_these_and_what_is_the_nodes(left: Path) -> None:
    with read_directory(left, namespaces=("bank",)) as state:
        assert {name[0] for name in state.fragments} == {"bank"}
        assert {view.epoch for view in state.partitions.values()} == {2}
    with read_directory(left, partitions=(), namespaces=()) as state:
        assert (state.fragments, state.partitions) == ({}, {})
        assert state.topology is not None
        assert state.time_ms > NOW_MS


def test_a_prepared_transaction_is_known_with_its_time(directory: Path) -> None:
    name = where(KEYS[0])
    with read_directory(directory) as state:
        lwm, epoch = state.fragments[name].counter.lwm, state.partitions[name[1]].epoch
    tx = b"t" * 16
    held = r.Write(*name, epoch, lwm, [KEYS[0]], [b"held"], lwm, tx)
    above = r.Write(*name, epoch, lwm + 1, [KEYS[0]], [b"above"], lwm)
    append(directory, [r.Prepare(tx, name[1], epoch, [held], [], [name[1], 7], 7), r.Update([above])], now_ms=NOW_MS)
    with read_directory(directory) as state:
        assert state.fragments[name].counter.ranges == ((lwm + 1, 1),)
        prepared = state.partitions[name[1]].prepared[tx]
        assert (prepared.record.writes, prepared.since_ms) == ([held], NOW_MS)
        assert dict(state.rows(name, _no_damage))[KEYS[0]].value == b"above"


def test_nothing_in_the_directory_is_changed(directory: Path) -> None:
    def look() -> dict[str, bytes]:
        files = [file for file in directory.rglob("*") if file.is_file() and file.name != "lock.mdb"]
        return {str(file.relative_to(directory)): file.read_bytes() for file in files}

    before = look()
    with read_directory(directory, pages=True) as state:
        rows_of(state)
    assert look() == before


# What is damaged.


def test_a_damaged_row_is_told_and_the_rest_is_read(directory: Path) -> None:
    with read_directory(directory) as state:
        whole = rows_of(state)
    key = KEYS[50]  # of the checkpoint, and not in the log since
    assert flip(directory, b"1" + key)
    told: list[bytes | None] = []
    with read_directory(directory, pages=True) as state:
        rows = {(n, k) for n in state.fragments for k, _ in state.rows(n, lambda bad, _: told.append(bad))}
    assert set(told) == {key}
    assert set(whole) - rows == {(where(key), key), (("bank", where(key)[1]), key)}


def test_a_damaged_row_does_not_keep_the_fold_from_its_neighbours(directory: Path) -> None:
    name = where(KEYS[50])
    assert flip(directory, b"1" + KEYS[50])
    with read_directory(directory) as state:
        lwm, epoch = state.fragments[name].counter.lwm, state.partitions[name[1]].epoch
    new = KEYS[50] + b"+"  # which lies beside the damage, and is looked up because the write is out of order
    append(directory, [r.Update([r.Write(*name, epoch, lwm + 1, [new], [b"new"], lwm)])], now_ms=NOW_MS)
    told: list[bytes | None] = []
    with read_directory(directory) as state:
        rows = dict(state.rows(name, lambda bad, _: told.append(bad)))
    assert rows[new].value == b"new"
    assert told == [KEYS[50]]


def test_a_store_that_was_cut_short_is_refused_before_it_can_bring_the_process_down(directory: Path) -> None:
    file = directory / "store" / "data.mdb"
    with file.open("r+b") as data:
        data.truncate(file.stat().st_size // 2)
    with pytest.raises(CorruptionError, match=r"data\.mdb.*copy the directory again"):
        read_directory(directory, pages=True)


def test_a_damaged_log_is_refused(directory: Path) -> None:
    segment = directory / "wal" / list_segments(directory / "wal")[-1].name
    data = bytearray(segment.read_bytes())
    at = data.rfind(b"2" + KEYS[150])
    data[at] ^= 1
    segment.write_bytes(data)
    with pytest.raises(CorruptionError, match="damaged segment="):
        read_directory(directory)


def test_a_half_written_block_at_the_end_is_no_damage(directory: Path) -> None:
    with read_directory(directory) as state:
        lsn, version = state.lsn, state.version
    segment = directory / "wal" / list_segments(directory / "wal")[-1].name
    data = bytearray(segment.read_bytes())
    end = len(data.rstrip(b"\0"))
    segment.write_bytes(data[: end - 5].ljust(len(data), b"\0"))
    with read_directory(directory) as state:
        assert state.lsn <= lsn
        assert state.version == version


def test_a_log_that_begins_after_the_checkpoint_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with await engine.aio.open(tmp_path / "live", partitions=1, wal_segment_bytes=1 << 16) as database:
            for _ in range(5):
                await database.namespace("acc").put_many({key: bytes(200) for key in KEYS})
            shutil.copytree(tmp_path / "live", tmp_path / "node", ignore=shutil.ignore_patterns("*.tmp"))

    asyncio.run(run())
    first, second, *_ = list_segments(tmp_path / "node" / "wal")
    (tmp_path / "node" / "wal" / first.name).unlink()
    with pytest.raises(CorruptionError, match=f"after LSN 0 the log goes on with LSN {second.first_lsn}"):
        read_directory(tmp_path / "node")


def test_a_store_that_is_ahead_of_its_log_is_refused(directory: Path, tmp_path: Path) -> None:
    young = Path(shutil.copytree(directory, tmp_path / "young"))
    for segment in (young / "wal").glob("0*.wal"):
        segment.unlink()
    with pytest.raises(CorruptionError, match="were store and wal copied at different moments"):
        read_directory(young)


def test_a_checkpoint_and_a_log_that_contradict_each_other_do_not_fold(directory: Path) -> None:
    name = where(KEYS[0])
    with read_directory(directory) as state:
        lwm, epoch = state.fragments[name].counter.lwm, state.partitions[name[1]].epoch
    overlap = r.Write(*name, epoch, lwm - 1, [KEYS[0], KEYS[1]], [b"x", b"y"])
    append(directory, [r.Update([overlap])], now_ms=NOW_MS)
    with pytest.raises(DoesNotFold, match="CounterOverlap"):
        read_directory(directory)
    with read_directory(directory, partitions=set(range(PARTITIONS)) - {name[1]}) as state:
        assert rows_of(state), "the other partitions are as readable as before"


def test_what_is_no_data_directory_is_a_usage_error(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UsageError, match="is not a data directory: expected"):
            read_directory(path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="found a file"):
        read_directory(tmp_path / "file")


def test_a_directory_is_live_while_its_node_runs(tmp_path: Path) -> None:
    async def run() -> None:
        async with await engine.aio.open(tmp_path / "node", partitions=PARTITIONS):
            assert is_live(tmp_path / "node")
        assert not is_live(tmp_path / "node")

    asyncio.run(run())
    assert not is_live(tmp_path)


def test_a_row_changed_behind_the_log_is_read_as_it_is(directory: Path) -> None:
    name = where(KEYS[50])
    replace(directory, name, {KEYS[50]: Entry(1, 1, b"other"), KEYS[51]: None})
    with read_directory(directory) as state:
        assert dict(state.rows(name, _no_damage))[KEYS[50]] == Entry(1, 1, b"other")


def test_a_row_that_went_missing_from_the_store_shows_in_the_digest_of_contents(directory: Path) -> None:
    name = where(KEYS[50])
    with read_directory(directory) as state:
        rows = dict(state.rows(name, _no_damage))
        assert state.unequal == {}
    lose(directory, name, KEYS[50])
    with read_directory(directory) as state:
        assert len(dict(state.rows(name, _no_damage))) == len(rows) - 1, "every row that is left is whole"
        assert list(state.unequal) == [name]


def test_the_digest_of_contents_is_told_however_large_what_came_since_the_checkpoint_is(tmp_path: Path) -> None:
    values = {b"{one}%d" % at: b"%d" % at * (1 << 20) for at in range(10)}
    name = where(b"{one}0")

    async def run() -> None:
        async with await engine.aio.open(tmp_path / "node", partitions=PARTITIONS) as database:
            await database.namespace("acc").put(b"{one}0", b"before")
        async with await engine.aio.open(tmp_path / "node", partitions=PARTITIONS) as database:
            await database.namespace("acc").put_many(values)
            shutil.copytree(tmp_path / "node", tmp_path / "left", ignore=shutil.ignore_patterns("*.tmp"))

    asyncio.run(run())
    with read_directory(tmp_path / "left") as state:
        rows = list(state.rows(name, _no_damage))
        assert len(rows) == len(values)
        assert state.contents(name) == rows_digest(rows) % (1 << 64)
