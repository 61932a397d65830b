"""Tails become stable by themselves, hold no value for long, and a checkpoint stores none twice."""

from __future__ import annotations

import msgspec
import pytest

from engine.state.loaded import whole
from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from rebalance.image import LARGE_BYTES, FragmentImage
from tests.sim.planted.stage import NAMESPACE, Stage, key
from wal import records as r
from wal.ids import Fragment

NAME: Fragment = ("acc", 7)
LARGE = b"x" * (LARGE_BYTES + 1)


def put(start: int, value: bytes | None, *, at: bytes = b"k", stable: int = 0) -> r.Update:
    """One update."""
    return r.Update([r.Write(*NAME, 1, start, [at], [value], stable)])


def checkpoint(replica: Replica) -> FragmentImage:
    """Take one; what it stores of the fragment."""
    image = replica.begin_checkpoint(1, [])
    replica.store.base.write(image)
    replica.store.thaw()
    data = image.fragments[NAME]
    assert data is not None
    return msgspec.msgpack.decode(whole(data), type=FragmentImage)


def test_when_nothing_more_is_written_no_copy_keeps_a_tail() -> None:
    with Stage(None) as stage:
        for number in range(3):
            stage.put(key(number), b"value")
        stage.wait(3_000)
        for name in ("n1", "n2", "n3"):
            node = stage[name].node
            assert node is not None
            replica = node.core.replica
            assert [f.counter.lwm for f in replica.fragments.values() if f.name[0] == NAMESPACE] == [1, 1, 1]
            assert all(f.tail() == [] and f.stable == f.counter.lwm for f in replica.fragments.values())
            assert replica.tails == {}
        stage.power_cut("n1", "n2", "n3")
        stage.start("n1", "n2", "n3")
        stage.curtain()


def test_what_is_stable_is_so_again_when_the_log_is_replayed() -> None:
    replica = Replica(LayeredStore(MemoryStore()))
    replica.apply(put(0, LARGE))
    assert NAME in replica.tails
    assert replica.apply(r.Stable(7, 1, [("acc", 1), ("bank", 1)]))
    assert replica.fragment(NAME).stable == 1
    assert replica.tails == {}
    assert not replica.apply(r.Stable(7, 1, [("acc", 1)])), "said twice, it changes nothing, and no log must know"
    replica.apply(put(1, b"next", stable=1))
    assert NAME in replica.tails, "the next write makes a tail again"
    replica.check()


def test_a_checkpoint_leaves_the_large_values_of_the_tail_to_the_rows_and_finds_them_there() -> None:
    replica = Replica(LayeredStore(MemoryStore()))
    for start, (at, value) in enumerate(
        [(b"a", LARGE), (b"a", LARGE + b"2"), (b"b", b"small"), (b"c", LARGE), (b"c", None)]
    ):
        replica.apply(put(start, value, at=at))
    before = replica.fragment(NAME)
    image = checkpoint(replica)
    assert image.held == [(1, 0)], "one was overwritten, one is small, one was deleted again: these the rows have not"
    assert [w.values for w in image.tail] == [[LARGE], [b""], [b"small"], [LARGE], [None]]
    again = Replica(LayeredStore(replica.store.base))
    again.load(replica.store.base.loading())
    assert again.fragment(NAME).tail() == before.tail()
    assert again.fragment(NAME).digest == before.digest
    again.check()
    assert NAME in again.tails


def test_an_image_whose_row_is_not_there_is_refused() -> None:
    replica = Replica(LayeredStore(MemoryStore()))
    replica.apply(put(0, LARGE))
    image = replica.begin_checkpoint(1, [])
    replica.store.base.write(image._replace(rows={}))
    with pytest.raises(ValueError, match=r"expected a row of version \(1, 1\) for its tail, found None"):
        Replica(LayeredStore(replica.store.base)).load(replica.store.base.loading())
