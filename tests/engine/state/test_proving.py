"""What a store holds, read and held against the digest that it keeps: of both kinds of store, and over layers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.state.store import BaseStore, CheckpointImage, Entry, LayeredStore
from engine.state.store_lmdb import LmdbStore
from engine.state.store_memory import MemoryStore
from rebalance.contents import Reading
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


def test_a_checkpoint_that_comes_between_says_nothing(base: BaseStore) -> None:
    reading = LayeredStore(base).prove(NAME)
    reading.step(7)
    base.write(image({b"k03": Entry(1, 31, b"changed")}, lsn=2))
    base.renew()
    assert read(reading) is None
    assert read(LayeredStore(base).prove(NAME)) is True


def test_what_is_cleared_above_the_store_is_nobodys_any_more(base: BaseStore) -> None:
    store = LayeredStore(base)
    begun = store.prove(NAME)
    begun.step(7)
    store.clear(NAME)
    assert read(begun) is None
    assert read(store.prove(NAME)) is True
