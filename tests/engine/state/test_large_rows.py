"""Rows that are large: of whatever there is in the store below, no more is read at once than a turn has room for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.data.kept import Kept
from engine.state.held import FIT_BYTES, FIT_WORK
from engine.state.store import BaseStore, CheckpointImage, Entry, LayeredStore, Row
from engine.state.store_envelope import row_is_whole
from engine.state.store_lmdb import LmdbStore
from engine.state.store_memory import MemoryStore
from engine.state.store_raw import PROVEN_BYTES
from rebalance.contents import row_digest
from tests.rebalance.copies import Copies, name_of
from tests.support.called import called
from wal import records as r
from wal.ids import Fragment

NAME: Fragment = ("n", 3)
SIZES = (10, 300 << 10, 0, 1_200 << 10, 3_000, 3 << 20)
ROWS = {b"%03d" % at: Entry(1, at + 1, bytes([at]) * SIZES[at % len(SIZES)]) for at in range(48)}
DIGEST = sum(row_digest(key, entry) for key, entry in ROWS.items()) % (1 << 64)


class Metered(LayeredStore):
    """A store that knows how many bytes were read below it since somebody looked."""

    def __init__(self, base: BaseStore) -> None:
        super().__init__(base)
        self.bytes = 0
        self._inside = False  # of one of them
        for name in ("scan", "digests", "held", "sum_some", "fitting", "get"):
            setattr(base, name, self._metered(base, name))

    def _metered(self, base: BaseStore, name: str) -> Callable[..., Any]:
        scan, get, read = base.scan, base.get, getattr(base, name)

        def reading(fragment: Fragment, *what: Any, **how: Any) -> Any:
            if self._inside:
                return read(fragment, *what, **how)
            self._inside = True
            rows: list[Row] = []
            if name in ("get", "held"):
                keys = what if name == "get" else what[0]
                rows = [(key, entry) for key in keys if (entry := get(fragment, key)) is not None]
            elif name != "fitting":
                rows = scan(fragment, *what, **how)
            self.bytes += sum(len(entry.value or b"") for _, entry in rows)
            found = read(fragment, *what, **how)
            self._inside = False
            return found

        return reading

    def took(self) -> int:
        """So many."""
        took, self.bytes = self.bytes, 0
        return took


@pytest.fixture(params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Metered]:
    """All rows in the store below."""
    base: BaseStore = MemoryStore() if request.param == "memory" else LmdbStore(tmp_path / "store")
    base.write(CheckpointImage(1, {}, {NAME: b"state"}, {}, [], {NAME: dict(ROWS)}))
    yield Metered(base)
    base.close()


MOST = 2 * FIT_BYTES + max(SIZES)


@pytest.mark.parametrize("down", [False, True], ids=["ascending", "descending"])
@pytest.mark.parametrize("limit", [1, 7, 1_000])
def test_a_page_ends_where_its_rows_are_many_bytes(store: Metered, limit: int, *, down: bool) -> None:
    changed = {b"005": b"new", b"0055": b"between", b"047": b"last"}
    for counter, (key, value) in enumerate(changed.items(), 100):
        store.put(NAME, key, Entry(2, counter, value))
    found: list[Row] = []
    at: bytes | None = b"\xff" if down else b""
    while at is not None:
        page = store.page(NAME, at, limit, down=down)
        took = store.took()
        assert took <= MOST
        assert page.work >= took // 2 // FIT_BYTES * FIT_WORK, "what is read is work"
        found += page.rows
        at = page.next
    values = {key: entry.value for key, entry in ROWS.items()} | changed
    assert [(key, entry.value) for key, entry in found] == sorted(values.items(), reverse=down)


def test_what_a_fragment_contains_is_summed_up_a_few_large_rows_at_a_time(store: Metered) -> None:
    reading = store.prove(NAME)
    while not reading.done:
        reading.step(500)
        assert store.took() <= MOST
    assert reading.proves
    digests: dict[bytes, int] = {}
    at: bytes | None = b""
    while at is not None:
        glance = store.digests(NAME, at, 500)
        assert store.took() <= MOST
        digests.update(glance.found)
        at = glance.next
    assert sum(digests.values()) % (1 << 64) == DIGEST


def test_and_so_is_what_is_written_in_the_place_of_large_rows(store: Metered) -> None:
    for counter, key in enumerate([*ROWS, b"new"], 100):
        store.put(NAME, key, Entry(2, counter, b"small"))
    walk = store.walk(NAME)()
    assert walk is not None
    store.took()
    steps = 0
    while not walk.done:
        work = walk.step(500)
        took = store.took()
        assert took <= MOST
        assert work >= took // FIT_BYTES * FIT_WORK
        steps += 1
    assert steps > len(ROWS) // len(SIZES)
    now = {key: Entry(2, counter, b"small") for counter, key in enumerate([*ROWS, b"new"], 100)}
    assert walk.digest == sum(row_digest(key, entry) for key, entry in now.items()) % (1 << 64)


def test_rows_are_counted_a_few_at_a_time_where_large_ones_were_written_anew(store: Metered) -> None:
    for counter, key in enumerate([*ROWS, b"new"], 100):
        store.set(NAME, key, Entry(2, counter, b"small" if counter % 2 else None))
    looks = 0
    while (found := store.count(NAME, 500))[1] > 500:
        assert store.took() <= MOST
        looks += 1
    assert looks > len(ROWS) // len(SIZES)
    assert found[0] == (len(ROWS) + 1) // 2


def test_large_rows_that_are_overwritten_are_kept_for_a_snapshot_and_read_later(store: Metered) -> None:
    kept = Kept(store)
    kept.begin((1, 1))
    kept.keep(NAME, list(ROWS), (1, 1))
    assert store.took() == 0
    assert kept.has_unread()
    for counter, key in enumerate(ROWS, 100):
        store.put(NAME, key, Entry(2, counter, b"new"))
    while kept.has_unread():
        next(kept.read())
        assert store.took() <= MOST
    assert {key: kept.at((1, 1), NAME, key) for key in ROWS} == ROWS
    kept.end((1, 1))
    kept.begin((1, 2))
    kept.keep(NAME, [b"000"], (1, 2))
    assert not kept.has_unread(), "a small one is kept at once"


@pytest.mark.parametrize("down", [False, True], ids=["ascending", "descending"])
def test_a_large_row_of_another_fragment_is_none_of_its_own(store: Metered, *, down: bool) -> None:
    """Before it or behind it: what is in memory is read as if there was none. A scan of 2,600 rows took as many turns."""
    for partition in (2, 4):
        name = (NAME[0], partition)
        for at in range(100):
            store.put(name, b"%03d" % at, Entry(1, at + 1, b"small"))
        page = store.page(name, b"\xff" if down else b"", 1_000, down=down)
        assert len(page.rows) == 100
        assert page.next is None


def test_where_all_rows_are_small_nobody_looks_how_large_they_are(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "store")
    store.write(
        CheckpointImage(1, {}, {NAME: b"state"}, {}, [], {NAME: {b"%d" % at: Entry(1, at, b"v" * 999) for at in range(99)}})
    )
    store.renew()
    assert store.fitting(NAME, b"", 1_000) == (1_000, 0)
    assert store.fitting_of(NAME, [b"1", b"2"]) == (2, 0)
    store.close()


def test_a_large_neighbour_of_what_is_not_found_is_looked_through_once(tmp_path: Path) -> None:
    """Once in the store as it is after a checkpoint: whoever asks for many keys that are not there reads it no more."""
    store = LmdbStore(tmp_path / "store")
    for lsn in (1, 2):
        store.write(CheckpointImage(lsn, {}, {NAME: b"state"}, {}, [], {NAME: {b"a": entry(lsn), b"c": entry(lsn)}}))
        store.renew()
        with called(row_is_whole.__code__) as looks:
            assert [store.get(NAME, b"b%d" % number) for number in range(100)] == [None] * 100
        assert looks.total() == 2
    store.close()


def entry(counter: int) -> Entry:
    """A large row."""
    return Entry(1, counter, bytes(PROVEN_BYTES))


def test_a_copy_says_that_it_has_rows_without_opening_one() -> None:
    """However often it asks for what it lacks: of a copy that was emptied, and keeps its rows, it says so each time."""
    copies = Copies("n1", "n2")
    copies.map(["n1", "n2"], ["n1", "n2"], promote=True)
    copies.run()
    copies["n1"].put(0, k="v" * 1_000)
    copies.run()
    copy, name = copies["n2"], name_of(0)
    copy.checkpoint()
    base = copy.replica.store.base
    assert isinstance(base, MemoryStore)
    for cleared, has in ((False, True), (True, False)):
        copy.log(r.FragmentClear(*name, "it differs", kept=not cleared))
        read = base.bytes_read
        assert copy.demander.surveys.have(copy.replica.fragment(name), no_history=False).kept == has
        assert base.bytes_read == read
