"""A checkpoint that another process writes: the same in the end, whoever writes it and whoever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.state import store_writer
from engine.state.store import GONE, CheckpointImage, Entry
from engine.state.store_apply import GATHERED_BYTES
from engine.state.store_errors import StoreFailed, StoreFull, StoreInUse
from engine.state.store_file import sole_writer
from engine.state.store_lmdb import LmdbStore
from engine.state.store_parts import PART_BYTES, Answer, frame, parts_of
from engine.state.store_writer import Writer
from engine.turn.core import CROWDED_AT
from engine.turn.settings import Settings
from rebalance.contents import MASK, row_digest
from tests.support.patience import PATIENCE_SECONDS
from tests.support.probes import heard
from wal.ids import Fragment

ACC, BANK = ("acc", 3), ("bank", 1)
SMALL_MAP = 1 << 20


def image(lsn: int, rows: int, value: bytes = b"v" * 100) -> CheckpointImage:
    """An image that changes, removes and clears."""
    return CheckpointImage(
        lsn,
        {"node": b"n%d" % lsn},
        {ACC: b"acc at %d" % lsn, BANK: None if lsn % 2 else b"bank"},
        {number: b"partition %d at %d" % (number, lsn) for number in range(5_000)},
        [BANK] if lsn % 2 else [],
        {
            ACC: {b"k%06d" % n: Entry(1, lsn * rows + n + 1, value) for n in reversed(range(rows))}
            | {b"k%06d" % (lsn - 1): None, b"gone": GONE, b"deleted": Entry(2, lsn, None)},
            BANK: {b"b%d" % n: Entry(3, lsn, b"") for n in range(10)},
        },
        1 << 40,
    )


def contents(store: LmdbStore) -> object:
    """All that a store holds."""
    store.renew()
    return store.load(), list(store.rows())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    opened = LmdbStore(tmp_path / "store", map_bytes=SMALL_MAP)
    yield opened
    opened.close()


def test_it_is_the_same_as_one_that_is_written_here(store: LmdbStore, tmp_path: Path) -> None:
    here = LmdbStore(tmp_path / "here")
    with heard() as probes:
        for lsn in (1, 2, 3):
            Writer(store).write(image(lsn, 3_000))
            here.write(image(lsn, 3_000))
            assert contents(store) == contents(here)
        Writer(store).write(image(4, 20_000))  # more than the map holds: it grows under both processes
        here.write(image(4, 20_000))
        assert contents(store) == contents(here)
        Writer(store, small_work=1 << 50).write(image(5, 10))  # and here again
        here.write(image(5, 10))
        assert contents(store) == contents(here)
    assert "store.writer_unavailable" not in probes
    here.close()


def test_whoever_writes_gives_way_to_other_sessions_as_well() -> None:
    """It has a session of its own, which Linux, where it groups processes by session, weighs as much as the node's."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        store_writer.give_way(process.pid)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == os.getpriority(os.PRIO_PROCESS, 0) + store_writer.NICENESS
        group = store_writer.autogroup(process.pid)
        assert not group.exists() or group.read_text(encoding="ascii").split()[-1] == str(store_writer.NICENESS)
    finally:
        process.communicate(b"\n", timeout=PATIENCE_SECONDS)


def test_what_a_transfer_of_large_values_leaves_in_memory_is_written_without_a_process(store: LmdbStore) -> None:
    """It waits for that whenever so much came: a process begins anew each time, and gives way to everybody."""
    settings = Settings()
    size = settings.checkpoint_bytes // CROWDED_AT + 8 * settings.supply_batch_bytes  # what a turn takes beyond that
    rows = size // 10_000
    came = image(1, rows, b"v" * 10_000)
    came = CheckpointImage(1, came.node, came.fragments, came.partitions, came.cleared, came.rows, size)
    with heard() as probes:
        Writer(store, program=said(Answer("StoreFailed", "it was asked"))).write(came)
    assert "store.map_grown" in probes
    store.renew()
    assert len(list(store.rows())) >= rows


def test_large_states_are_handed_over_in_parts_to_a_process_of_their_own(store: LmdbStore) -> None:
    """Here they would be put together, while nobody else has the interpreter."""
    pieces = [bytes(1 << 20)] * (store_writer.SMALL_WORK * store_writer.WEIGHED_OF_WORK >> 20)
    large = CheckpointImage(1, {"node": pieces}, {ACC: pieces}, {1: pieces}, [], {})
    assert max(len(frame(part)) for part in parts_of(large)) < PART_BYTES + (1 << 20) + 100
    with pytest.raises(StoreFailed, match="it was asked"):
        Writer(store, program=said(Answer("ready"), Answer("StoreFailed", "it was asked"))).write(large)


def test_the_states_of_very_many_fragments_are_work_also_where_no_row_has_changed(store: LmdbStore) -> None:
    """So it is when a node has come back, and its epochs have begun."""
    states: dict[Fragment, bytes | None] = {("many", number): b"state" for number in range(store_writer.SMALL_WORK)}
    came = CheckpointImage(1, {}, states, {}, [], {})
    with heard() as probes:
        Writer(store, program=said()).write(came)
    assert "store.writer_unavailable" in probes, "a process was asked for"
    store.renew()
    assert store.load().fragments == states


def said(*answers: Answer) -> list[str]:
    """A program that says this and ends, whatever it is told."""
    data = b"".join(map(frame, answers))
    return [sys.executable, "-c", f"import os; os.write(1, {data!r}); os._exit(0)"]


@pytest.mark.parametrize(
    "program",
    [
        [],
        ["/no/such/program"],
        said(),
        said(Answer("hello")),
        said(Answer("ready")),
        [sys.executable, "-c", "print('?' * 9)"],
    ],
    ids=["none", "missing", "silent", "strange", "killed", "babbling"],
)
def test_where_no_process_can_be_had_it_is_written_here(store: LmdbStore, program: list[str]) -> None:
    with heard() as probes:
        Writer(store, program=program).write(image(1, 1_000))
    assert "store.writer_unavailable" in probes
    store.renew()
    assert store.load().lsn == 1
    assert len(store.scan(ACC, b"", 2_000)) == 1_000


@pytest.mark.parametrize("replaced", [False, True], ids=["gone", "replaced"])
def test_a_store_that_was_moved_is_written_and_read_where_it_is_now(
    store: LmdbStore, tmp_path: Path, *, replaced: bool
) -> None:
    """Whoever opens a path opens what lies there now: another store, or a new one; and the log would be trimmed for it."""
    Writer(store).write(image(1, 1_000))
    store.path.rename(tmp_path / "moved")
    if replaced:
        other = LmdbStore(store.path)
        other.write(image(9, 10))
        other.close()
    with heard() as probes:
        Writer(store).write(image(2, 3_000))
    assert "store.writer_unavailable" in probes
    assert contents(store) == contents(store)
    assert store.load().lsn == 2
    assert len(store.scan(ACC, b"", 10_000)) == 3_000
    store.write(image(3, 20))
    store.renew()
    assert store.load().lsn == 3
    store.close()
    assert store.path.exists() is replaced
    for path, lsn in ((store.path, 9), (tmp_path / "moved", 3))[not replaced :]:
        other = LmdbStore(path)
        assert other.load().lsn == lsn
        other.close()


def test_a_store_that_was_moved_while_a_process_wrote_to_it_knows_how_large_it_is(store: LmdbStore, tmp_path: Path) -> None:
    writer = Writer(store)
    writer.write(image(1, 20_000)._replace(hurried=True))  # the map grows, in that process
    store.path.rename(tmp_path / "moved")
    store.renew()
    assert store.load().lsn == 1
    writer.write(image(2, 3_000)._replace(hurried=True))
    assert writer._kept is None
    assert contents(store) == contents(store)
    assert store.load().lsn == 2


def test_a_process_that_finds_another_store_at_its_path_writes_nothing(store: LmdbStore, tmp_path: Path) -> None:
    lock = sole_writer(tmp_path)
    with pytest.raises(StoreFailed, match="expected the directory that was opened"):
        LmdbStore(store.path, lock=lock)


def test_what_the_disk_refuses_there_is_refused_here(store: LmdbStore) -> None:
    with pytest.raises(StoreFull, match="no room"):
        Writer(store, program=said(Answer("ready"), Answer("StoreFull", "no room"))).write(image(1, 10))
    with pytest.raises(StoreFailed, match="a sync"):
        Writer(store, program=said(Answer("ready"), Answer("StoreFailed", "a sync"))).write(image(1, 10))
    with pytest.raises(StoreFailed, match="an earlier one failed"):
        Writer(store).write(image(2, 10))
    store.renew()
    assert store.load().lsn == 0


def test_when_its_parent_dies_nothing_of_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = LmdbStore(path)
    store.write(image(1, 100))
    store.close()
    lock = sole_writer(path)
    process = subprocess.Popen(
        [*store_writer._program(), str(path), str(1 << 30), str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(lock,),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    expected = frame(Answer("ready"))
    assert process.stdout.read(len(expected)) == expected
    os.close(lock)  # the parent is gone
    with pytest.raises(StoreInUse):
        LmdbStore(path)
    parts = [frame(part) for part in parts_of(image(2, 3_000))]
    process.stdin.write(b"".join(parts[:-1]))
    process.stdin.close()
    store = LmdbStore(path, patience_seconds=PATIENCE_SECONDS)
    assert process.wait(PATIENCE_SECONDS) == 1
    assert process.stdout.read() == b""
    assert store.load().lsn == 1
    assert len(store.scan(ACC, b"", 10_000)) == 100
    store.close()
    process.stdout.close()


SCRIPT = """
import engine
from wal.probe import listen
reached = []
listen(reached.append)
with engine.open({path!r}, partitions=4, checkpoint_ms=3_600_000) as database:
    names = database.namespace("n")
    for at in range(0, 20_000, 5_000):
        names.put_many({{b"k%05d" % n: b"v" * 100 for n in range(at, at + 5_000)}})
with engine.open({path!r}) as database:
    assert database.namespace("n").get(b"k19999") == b"v" * 100
assert "store.writer_unavailable" not in reached, reached
print("done")
"""


@pytest.mark.parametrize("how", ["script", "stdin"])
def test_it_works_from_a_program_that_has_no_main_guard(tmp_path: Path, how: str) -> None:
    text = SCRIPT.format(path=str(tmp_path / "data"))
    script = tmp_path / "script.py"
    script.write_text(text, encoding="utf-8")
    (tmp_path / "lmdb.py").write_text(
        "raise RuntimeError('what lies where the user works is not ours')\n", encoding="utf-8"
    )
    result = subprocess.run(
        [sys.executable, "-P", str(script)] if how == "script" else [sys.executable, "-P", "-"],
        input="" if how == "script" else text,
        capture_output=True,
        encoding="utf-8",
        cwd=tmp_path,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


@pytest.mark.parametrize("cleared", [False, True])
def test_a_fragment_larger_than_what_is_held_at_once_adds_up_to_its_rows(store: LmdbStore, *, cleared: bool) -> None:
    store.write(image(1, 1_000))
    large = image(2, 2 * GATHERED_BYTES // 10_000, b"w" * 10_000)._replace(cleared=[ACC] if cleared else [])
    store.write(large)
    store.renew()
    rows = [(key, entry) for _, key, entry in store.rows([ACC])]
    assert len(rows) == sum(entry not in (None, GONE) for entry in large.rows[ACC].values())
    assert store.contents(ACC) == sum(row_digest(key, entry) for key, entry in rows) & MASK
    assert store.live(ACC) == sum(entry.value is not None for _, entry in rows)


def test_while_a_transfer_waits_one_process_writes_one_checkpoint_after_the_other(store: LmdbStore, tmp_path: Path) -> None:
    """To begin takes as long as what a transfer brings in between; and where others are busy, who gives way ends late."""
    here, writer = LmdbStore(tmp_path / "here"), Writer(store)
    own, kept = os.getpriority(os.PRIO_PROCESS, 0), list[int]()
    for lsn in (1, 2, 3):
        writer.write(image(lsn, 20_000)._replace(hurried=True))  # the map grows with the first ones
        here.write(image(lsn, 20_000))
        assert contents(store) == contents(here)
        assert writer._kept is not None
        kept.append(writer._kept.pid)
        assert os.getpriority(os.PRIO_PROCESS, kept[-1]) == own
    assert len(set(kept)) == 1
    with heard() as probes:
        writer.write(image(4, 20_000))
    here.write(image(4, 20_000))
    assert contents(store) == contents(here)
    assert writer._kept is None, "nobody waits any more"
    assert not {"store.writer_unavailable", "store.writer_had_gone"} & {*probes}
    here.close()


@pytest.mark.parametrize("allowed", [True, False])
def test_who_gives_way_does_so_no_more_when_somebody_comes_to_wait_for_it(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch, *, allowed: bool
) -> None:
    """Clients that write on would wait for a process that all others go before. To raise one's own share again takes a
    privilege; without it another process begins anew."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    if not allowed:
        monkeypatch.setattr("engine.state.store_writer.give_way_no_more", lambda _: False)
    writer = Writer(store)
    writer.hurry()  # nothing is written
    with heard() as probes, ThreadPoolExecutor(1) as threads:
        written = threads.submit(writer.write, image(1, 20_000))
        process = _that_gives_way(writer)
        process.send_signal(signal.SIGSTOP)  # it is as nice as can be
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == own + store_writer.NICENESS
        writer.hurry()
        if allowed and "store.writer_begins_anew" not in probes:
            assert os.getpriority(os.PRIO_PROCESS, process.pid) == own
            process.send_signal(signal.SIGCONT)
        written.result(PATIENCE_SECONDS)
    assert allowed or "store.writer_begins_anew" in probes
    assert not {"store.writer_unavailable", "store.writer_had_gone"} & {*probes}, "another process wrote it"
    assert writer._kept is None, "nobody waits for the next one"
    store.renew()
    assert store.load().lsn == 1
    assert len(store.scan(ACC, b"", 30_000)) == 20_000


def _that_gives_way(writer: Writer) -> subprocess.Popen[bytes]:
    until = time.monotonic() + PATIENCE_SECONDS
    while (process := writer._kept) is None or not writer._gives_way:
        assert time.monotonic() < until, "nobody writes"
        time.sleep(0.001)
    return process


def test_what_is_written_here_ends_who_was_kept(store: LmdbStore) -> None:
    """The map may grow by it, which another process would not know."""
    writer = Writer(store)
    writer.write(image(1, 20_000)._replace(hurried=True))
    kept = writer._kept
    assert kept is not None
    writer.write(CheckpointImage(2, {}, {}, {}, [], {ACC: {b"k": Entry(1, 1 << 40, b"v")}}))
    assert writer._kept is None
    assert kept.returncode is not None
    store.renew()
    assert store.load().lsn == 2


@pytest.mark.parametrize("killed", [False, True])
def test_who_was_kept_and_has_gone_is_followed_by_another(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch, *, killed: bool
) -> None:
    if not killed:
        monkeypatch.setattr("engine.state.store_writer._program", lambda: [sys.executable, "-c", IMPATIENT])
    writer = Writer(store)
    writer.write(image(1, 20_000)._replace(hurried=True))
    kept = writer._kept
    assert kept is not None
    if killed:
        kept.kill()
    kept.wait(PATIENCE_SECONDS)
    with heard() as probes:
        writer.write(image(2, 20_000)._replace(hurried=True))
    assert "store.writer_had_gone" in probes
    assert "store.writer_unavailable" not in probes
    assert writer._kept is not None
    assert writer._kept.pid != kept.pid
    writer.close()
    store.renew()
    assert store.load().lsn == 2


IMPATIENT = """
import sys
from pathlib import Path
from engine.state import store_writer
store_writer.KEPT_SECONDS = 0.2
store_writer.main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
"""
