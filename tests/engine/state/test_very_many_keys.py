"""What is done in one step with very many keys of one fragment looks at none: they are copied, or kept, part by part."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from itertools import chain

import pytest

from engine.state.freezing import PRUNED_AT_ONCE
from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from engine.turn.letting_go import FREED_AT_ONCE, empty
from rebalance.contents import Walk, row_digest
from rebalance.image import take_down
from tests.engine.state.test_growth import MANY, NAME, writes
from tests.support.weight import that_hold_more
from wal.records import FragmentClear, Write

FEW_BLOCKS = 500
"""As many as are made, or freed, where there are few keys, too."""


def blocks(step: Callable[[], object]) -> int:
    """By how many blocks of memory a step changes what is held, what it returns among them."""
    gc.collect()
    gc.disable()
    try:
        before = sys.getallocatedblocks()
        held = step()
        change = sys.getallocatedblocks() - before
        del held
        return change
    finally:
        gc.enable()


@pytest.fixture
def replica() -> Replica:
    return Replica(LayeredStore(MemoryStore()))


def _rows(replica: Replica) -> int:
    return sum(row_digest(*row) for row in replica.store.scan(NAME, b"", 4 * MANY)) % (1 << 64)


def _summed(replica: Replica, walk: Walk, most: int) -> int | None:
    while not walk.done:
        assert walk.step(most) <= most
    return replica.store.walked(walk)


@pytest.mark.parametrize("value", [b"v", None])
def test_what_is_to_be_summed_up_is_copied_if_it_is_not_frozen(replica: Replica, value: bytes | None) -> None:
    for write in writes(value=value):
        replica.apply_write(write)
    list(replica.changes.prune(replica.fragments, ()))  # so that some keys are said to be nothing, twice
    replica.freeze(1, [])
    for write in writes(value=b"w"):
        replica.apply_write(Write("acc", 0, 1, MANY + write.start, write.keys[::2], values=write.values[::2]))
    assert abs(blocks(lambda: replica.store.walk(NAME))) < FEW_BLOCKS
    begin, wanted = replica.store.walk(NAME), _rows(replica)
    for write in writes(value=b"x", start=3 * MANY):
        replica.apply_write(write)
    walk = begin()
    assert walk is not None
    assert _summed(replica, walk, 1_000) == wanted != _rows(replica)


def test_a_walk_that_a_checkpoint_overtakes_is_not_gone_on_with(replica: Replica) -> None:
    for write in writes(value=b"v"):
        replica.apply_write(write)
    replica.store.base.write(image := replica.begin_checkpoint(1, []))
    begin = replica.store.walk(NAME)
    walk = begin()
    assert walk is not None
    walk.step(1_000)
    assert not replica.store.overtaken(walk)
    list(empty(replica.store.thaw()))
    assert image.lsn
    assert replica.store.overtaken(walk)
    assert replica.store.walked(walk) is None


def test_what_a_checkpoint_takes_down_is_copied_in_parts(replica: Replica) -> None:
    for write in writes(value=None):
        replica.apply_write(write)
    assert len(replica.fragment(NAME).tombstones) == MANY
    assert not that_hold_more(MANY // 2, [take_down(replica.fragment(NAME))])
    replica.apply(FragmentClear("acc", 0, "anew"))
    for write in writes(value=b"v", start=MANY):
        replica.apply_write(write)
    assert len(replica.fragment(NAME).suspects) == MANY
    assert not that_hold_more(MANY // 2, [take_down(replica.fragment(NAME)).suspects])


def test_rows_that_are_cleared_are_freed_in_pieces_when_their_layer_goes(replica: Replica) -> None:
    for write in writes(value=b"v"):
        replica.apply_write(write)
    assert abs(blocks(lambda: replica.store.clear(NAME))) < FEW_BLOCKS
    assert not replica.store.scan(NAME, b"", 1)
    replica.store.base.write(replica.begin_checkpoint(1, []))
    pieces: list[int] = []
    freed = blocks(lambda: pieces.extend(empty(replica.store.thaw())))
    assert freed < -MANY
    assert len(pieces) >= MANY // FREED_AT_ONCE


def _pieces(replica: Replica) -> Iterator[int]:
    return replica.changes.prune(replica.fragments, ())


def test_deletes_none_of_which_may_go_yet_are_looked_at_once_each_in_pieces(replica: Replica) -> None:
    for write in writes(value=None):
        replica.apply_write(Write("acc", 0, 1, write.start, write.keys, values=write.values))
    assert len(list(_pieces(replica))) >= MANY // PRUNED_AT_ONCE
    assert len(replica.fragment(NAME).tombstones) == MANY


def test_deletes_that_may_go_since_a_checkpoint_has_looked_go_with_the_next_one(replica: Replica) -> None:
    for write in writes(value=None):
        replica.apply_write(Write("acc", 0, 1, write.start, write.keys, values=write.values))
    list(_pieces(replica))
    replica.fragment(NAME).note_stable(MANY)
    image = replica.freeze(1, [])
    list(replica.changes.pieces())
    assert len(replica.fragment(NAME).tombstones) == MANY
    replica.store.base.write(image)
    list(empty(replica.store.thaw()))
    replica.begin_checkpoint(2, [])
    assert not replica.fragment(NAME).tombstones


def test_half_of_very_many_deletes_goes_in_as_many_looks_as_there_are(replica: Replica) -> None:
    for write in chain(writes(value=None), writes(value=None, start=MANY)):
        replica.apply_write(Write("acc", 0, 1, write.start, write.keys, values=write.values))
    replica.fragment(NAME).note_stable(MANY)
    pieces = list(_pieces(replica))
    assert len(replica.fragment(NAME).tombstones) == MANY
    assert max(pieces) <= 1 + PRUNED_AT_ONCE
    assert len(pieces) <= 2 * MANY // PRUNED_AT_ONCE + 100
