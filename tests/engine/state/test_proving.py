"""What a store holds, read and held against the digest that it keeps: of both kinds of store, and over layers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.state.store import BaseStore, CheckpointImage, Entry, LayeredStore
from engine.state.store_lmdb import LmdbStore
from engine.state.store_memory import MemoryStore
from rebalance.contents import READINGS_MAX, Reading
from wal.ids import Fragment

NAME: Fragment = ("acc", 0)
ROWS = {f"k{at:02}".encode(): Entry(1, at + 1, b"v" * at) for at in range(20)}


@pytest.fixture(params=["memory", "lmdb"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseStore]:
    """A store with rows."""
    store = MemoryStore() if request.param == "memory" else LmdbStore(tmp_path / "store")
    store.write(image(dict(ROWS)))
    store.renew()
    yield store
    store.close()


def image(rows: dict[bytes, Entry | None], *, lsn: int = 1) -> CheckpointImage:
    """A checkpoint of some rows."""
    return CheckpointImage(lsn, {}, {NAME: b"state"}, {}, [], {NAME: rows})


def read(reading: Reading, rows: int = 7) -> bool | None:
    """To the end."""
    while not reading.done:
        assert reading.step(rows) <= rows
    return reading.proves


@pytest.mark.parametrize("rows", [1, 7, 10, 20, 100])
def test_rows_prove_the_digest_that_was_made_of_them(base: BaseStore, rows: int) -> None:
    assert read(LayeredStore(base).prove(NAME), rows) is True


def test_what_lies_above_the_store_is_not_read(base: BaseStore) -> None:
    store = LayeredStore(base)
    store.set(NAME, b"k05", Entry(1, 30, b"new"))
    assert read(store.prove(NAME)) is True


def test_what_there_is_nothing_of_proves_that(base: BaseStore) -> None:
    assert read(LayeredStore(base).prove(("acc", 1))) is True


def checkpoint(store: LayeredStore, changes: dict[bytes, bytes | None], *, lsn: int) -> None:
    """One that brings some changes, and nothing else."""
    for key, value in changes.items():
        store.set(NAME, key, Entry(1, 30 + lsn, value))
    rows = {key: Entry(1, 30 + lsn, value) for key, value in changes.items()}
    store.freeze()
    store.base.write(image(dict(rows), lsn=lsn))
    store.thaw()


def test_a_checkpoint_that_comes_between_says_nothing(base: BaseStore) -> None:
    store = LayeredStore(base)
    reading = store.prove(NAME)
    reading.step(7)
    checkpoint(store, {b"k03": b"changed"}, lsn=2)
    assert read(reading) is None
    assert read(store.prove(NAME)) is True


@pytest.mark.parametrize("gone_at", [b"k00x", b"k19x"], ids=["read before", "read after"])
def test_nor_do_two_after_which_the_digest_is_what_it_was(base: BaseStore, gone_at: bytes) -> None:
    """What was put is deleted before all is read: a row was seen and is in no digest, or the other way round (seed 63)."""
    store = LayeredStore(base)
    began, kept = store.prove(NAME), base.contents(NAME)
    began.step(1)
    checkpoint(store, {gone_at: b"for a while", b"k10x": b"for a while"}, lsn=2)
    began.step(12)
    checkpoint(store, {gone_at: None, b"k10x": None}, lsn=3)
    assert base.contents(NAME) == kept
    assert read(began) is None
    assert read(store.prove(NAME)) is True


def test_a_checkpoint_of_other_fragments_overtakes_nothing(base: BaseStore) -> None:
    store = LayeredStore(base)
    reading = store.prove(NAME)
    reading.step(7)
    store.set(("acc", 1), b"k", Entry(1, 1, b"other"))
    store.freeze()
    base.write(CheckpointImage(2, {}, {("acc", 1): b"state"}, {}, [], {("acc", 1): {b"k": Entry(1, 1, b"other")}}))
    store.thaw()
    assert read(reading) is True


def test_whoever_gives_up_reading_leaves_little(base: BaseStore) -> None:
    store = LayeredStore(base)
    first, *others = [store.prove(NAME) for _ in range(READINGS_MAX + 1)]
    assert read(first) is None
    assert all(read(other) is True for other in others)


def test_what_is_cleared_above_the_store_is_nobodys_any_more(base: BaseStore) -> None:
    store = LayeredStore(base)
    begun = store.prove(NAME)
    begun.step(7)
    store.clear(NAME)
    assert read(begun) is None
    assert read(store.prove(NAME)) is True
