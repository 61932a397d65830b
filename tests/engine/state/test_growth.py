"""What lists very many keys of one fragment does not grow in one step, whatever lists them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.data.kept import Kept
from engine.state.ahead import Ahead
from engine.state.replica import Replica
from engine.state.store import SORTED_MAX, LayeredStore
from engine.state.store_memory import MemoryStore
from engine.turn.letting_go import FREED_AT_ONCE, empty
from rebalance.by_key import FEW
from tests.engine.data.test_expiry import Story
from tests.support.weight import that_hold_more
from wal.records import FragmentClear, Preload, Write

NAME = ("acc", 0)
MANY = FEW + FEW // 2
AT_ONCE = 1_000


def grow_in_one_step(*roots: object) -> list[str]:
    """What would, and is dear: a list is not, as nothing in it has to be found."""
    return [found for found in that_hold_more(FEW, roots) if " in a dict of " in found]


def writes(*, value: bytes | None, start: int = 0) -> Iterator[Write]:
    """Very many keys."""
    for at in range(0, MANY, AT_ONCE):
        keys = [b"%d" % (start + key) for key in range(at, at + AT_ONCE)]
        yield Write("acc", 0, 1, start + at, keys, values=[value] * AT_ONCE, stable=start + at)


@pytest.fixture
def replica() -> Replica:
    return Replica(LayeredStore(MemoryStore()))


@pytest.mark.parametrize("value", [b"v", None])
def test_puts_and_deletes(replica: Replica, value: bytes | None) -> None:
    for write in writes(value=value):
        replica.apply_write(write)
    assert not grow_in_one_step(replica)
    assert len(replica.fragment(NAME).tombstones) == (MANY if value is None else 0)
    assert replica.store.count(NAME, MANY) == (0 if value is None else MANY, MANY)


def test_puts_one_by_one(replica: Replica) -> None:
    for at in range(MANY):
        replica.apply_write(Write("acc", 0, 1, at, [b"%d" % at], values=[b"v"], stable=at))
    assert not grow_in_one_step(replica)
    assert replica.store.get(NAME, b"%d" % (MANY - 1))


@pytest.mark.parametrize("value", [b"v", None])
@pytest.mark.parametrize("loading", [True, False])
def test_writes_that_are_worked_out_before(replica: Replica, value: bytes | None, loading: bool) -> None:
    if loading:
        replica.apply(FragmentClear("acc", 0, "anew"))
    for start in (0, MANY):
        keys = [b"%d" % key for key in range(start, start + MANY)]
        write = Write("acc", 0, 1, start, keys, values=[value] * MANY, stable=start)
        ahead = replica.ahead[NAME, start] = Ahead(write)
        for _ in ahead.pieces():
            pass
        for _ in ahead.look(replica.store, replica.fragment(NAME)):
            pass
        replica.apply_write(write)
    assert not grow_in_one_step(replica.store, replica.fragment(NAME).suspects, replica.fragment(NAME).tombstones)
    assert replica.store.count(NAME, 2 * MANY) == (0 if value is None else 2 * MANY, 2 * MANY)
    assert len(replica.fragment(NAME).suspects) == (2 * MANY if loading else 0)


def test_what_comes_live_while_a_copy_is_filled_and_what_fills_it(replica: Replica) -> None:
    replica.apply(FragmentClear("acc", 0, "anew"))
    for write in writes(value=b"v"):
        replica.apply_write(write)
    for write in writes(value=b"v", start=MANY):
        epochs, counters = [1] * AT_ONCE, [*range(1, AT_ONCE + 1)]
        replica.apply(Preload("acc", 0, epochs=epochs, counters=counters, keys=write.keys, values=write.values))
    assert not grow_in_one_step(replica)
    assert len(replica.fragment(NAME).suspects) == MANY


def test_a_scan_and_a_count_take_no_more_than_they_do_at_once(replica: Replica) -> None:
    for write in writes(value=b"v"):
        replica.apply_write(write)
    store, looked = replica.store, 0
    while (found := store.count(NAME, AT_ONCE))[1] > AT_ONCE:
        looked += AT_ONCE
    assert (found[0], looked) == (MANY, MANY - AT_ONCE)
    pages = 1
    while not (page := store.page(NAME, b"", 3)).rows:
        pages += 1
    assert pages == -(-MANY // SORTED_MAX)
    assert [key for key, _ in page.rows] == [b"0", b"1", b"10"]


def test_what_is_kept_for_a_snapshot(replica: Replica) -> None:
    kept = Kept(replica.store)
    kept.begin((0, 1))
    for write in writes(value=b"v"):
        kept.keep(NAME, write.keys, (0, 1))
        replica.apply_write(write)
    assert not grow_in_one_step(kept)
    kept.begin((0, 2))
    large = [key for write in writes(value=None) for key in write.keys]
    kept.keep(NAME, large, (0, 2))
    assert not grow_in_one_step(kept)
    assert kept.at((0, 1), NAME, b"7") is None
    found = kept.at((0, 2), NAME, b"7")
    assert found is not None
    assert found.counter == 8
    kept.end((0, 1))
    kept.end((0, 2))
    assert max(kept.tidy()) < FREED_AT_ONCE


def test_deadlines() -> None:
    story = Story()
    expiry = story.node.expiry
    for at in range(MANY):
        expiry._note(0, b"acc\0%d" % at, 5_000 + at)  # as a write of it counts
    assert not grow_in_one_step(expiry._deadlines)


def test_what_lies_in_parts_is_freed_in_pieces(replica: Replica) -> None:
    for write in writes(value=b"v"):
        replica.apply_write(write)
    image = replica.begin_checkpoint(1, [])
    replica.store.base.write(image)
    pieces = list(empty(replica.store.thaw()))
    assert len(pieces) >= MANY // FREED_AT_ONCE
