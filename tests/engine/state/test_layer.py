"""What a layer packs: the rows of fragments to which nothing comes any more, until something does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.state.layer import _OPENED, PACKED_BYTES, PACKED_ROWS, Layer
from engine.state.replica import Replica
from engine.state.rows import has_none_of
from engine.state.store import CheckpointImage, Entry, LayeredStore
from engine.state.store_memory import MemoryStore
from rebalance.by_fragment import ByFragment
from tests.support.weight import that_hold_more, weight
from wal.ids import Fragment
from wal.records import Update, Write

ACC: Fragment = ("acc", 7)


def layer_of(rows: dict[bytes, Entry], fragment: Fragment = ACC) -> Layer[Entry]:
    """A layer with the rows of one fragment, which was packed, if that is possible."""
    layer = Layer(Entry)
    layer.begin(fragment).update(rows)
    layer.pack(fragment)
    return layer


def rows_of(count: int, value: bytes = b"v" * 100) -> dict[bytes, Entry]:
    """So many rows."""
    return {b"key-%d" % n: Entry(1, n, value) for n in range(count, 0, -1)}


def test_rows_that_are_packed_are_read_as_they_were_in_the_order_in_which_they_came() -> None:
    rows = rows_of(5)
    layer = layer_of(rows)
    assert not layer.opened
    assert dict(layer.rows) == {ACC: rows}
    assert list(layer.rows[ACC].items()) == list(rows.items())
    assert not layer.opened, "to look is not to open"
    assert list(layer.begin(ACC).items()) == list(rows.items())
    assert dict(layer.rows) == {ACC: rows}


def test_a_fragment_is_packed_once_so_that_what_comes_and_goes_takes_no_more_each_time() -> None:
    layer = layer_of(rows_of(1))
    layer.begin(ACC)[b"key-1"] = Entry(1, 2, b"w")
    layer.pack(ACC)
    assert layer.opened[ACC] == {b"key-1": Entry(1, 2, b"w")}


def test_many_rows_large_ones_and_deletes_stay_open() -> None:
    assert not layer_of(rows_of(PACKED_ROWS)).opened
    assert layer_of(rows_of(PACKED_ROWS + 1)).opened
    assert layer_of(rows_of(1, b"v" * PACKED_BYTES)).opened
    assert layer_of(rows_of(2, b"v" * (PACKED_BYTES // 2))).opened
    layer = Layer(Entry)
    layer.begin(ACC)[b"k"] = Entry(1, 1, None)
    layer.bury(ACC, 1)
    layer.pack(ACC)
    assert layer.opened


def test_of_large_rows_it_is_seen_that_they_stay_open_before_they_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen of 16 MiB took 0.2 s in the turn in which their fragment became stable, each time it did."""
    monkeypatch.delattr("engine.state.layer._encode")
    assert layer_of(rows_of(PACKED_ROWS, b"v" * PACKED_BYTES)).opened


def test_what_was_cleared_is_not_there_packed_either() -> None:
    layer = layer_of(rows_of(1))
    layer.clear(ACC)
    assert not layer.rows
    assert layer.open(ACC) is None


def test_who_reads_all_rows_meets_each_once_whatever_is_opened_meanwhile() -> None:
    """A thread writes the checkpoint while the node goes on."""
    layer = Layer(Entry)
    rows = {("acc", number): rows_of(1) for number in range(6)}
    for fragment, mine in rows.items():
        layer.begin(fragment).update(mine)
        layer.pack(fragment)
    found: dict[Fragment, dict[bytes, Entry]] = {}
    for fragment in layer.rows:
        layer.open(("acc", (fragment[1] + 3) % 6))
        assert fragment not in found
        found[fragment] = dict(layer.rows[fragment])
    assert found == rows


def test_small_rows_that_are_packed_take_little_more_than_their_bytes() -> None:
    fragments: list[Fragment] = [(f"n{number}", partition) for number in range(100) for partition in range(10)]
    layer = Layer(Entry)
    for fragment in fragments:
        layer.begin(fragment).update({b"key-%s" % fragment[0].encode(): Entry(1, 1, b"%100d" % fragment[1])})
    before = weight([layer]) // len(fragments)
    for fragment in fragments:
        layer.pack(fragment)
    after = weight([layer]) // len(fragments)
    assert before > 300
    assert after < 220


class _Watched(ByFragment[int]):
    """Where the rows of a layer are, while another thread reads them."""

    def __init__(self, layer: Layer[Entry]) -> None:
        super().__init__()
        self.layer = layer

    def __setitem__(self, name: Fragment, value: int) -> None:
        assert value != _OPENED or name in self.layer.opened, "for a moment its rows are nowhere"
        super().__setitem__(name, value)


def test_rows_are_opened_before_they_are_packed_no_more() -> None:
    layer = Layer(Entry)
    layer.packed = _Watched(layer)
    layer.begin(ACC).update(rows_of(1))
    layer.pack(ACC)
    assert layer.open(ACC) == rows_of(1)


def test_who_reads_rows_meets_them_though_they_are_opened_just_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread opens them when it was seen that they are not open, and not yet where they are packed."""
    layer, unpacked = layer_of(rows_of(2)), Layer._unpacked
    opening: list[None] = [None]

    def meanwhile(self: Layer[Entry], fragment: Fragment) -> dict[bytes, Entry] | None:
        if opening:
            opening.pop()
            self.open(fragment)
        return unpacked(self, fragment)

    monkeypatch.setattr(Layer, "_unpacked", meanwhile)
    assert layer.rows[ACC] == rows_of(2)
    assert not opening


KEYS = [b"k%d" % at for at in range(6)]


def _got(store: LayeredStore) -> list[Entry | None]:
    return [store.get(ACC, key) for key in KEYS]


def _counted(store: LayeredStore) -> int | None:
    return store.count(ACC, 99)[0]


def _summed_up(store: LayeredStore) -> int | None:
    walk = store.walk(ACC)()
    assert walk is not None
    while not walk.done:
        walk.step(99)
    return store.walked(walk)


def _put(store: LayeredStore) -> list[Entry | None]:
    store.put(ACC, b"k3", Entry(2, 9, b"put"))
    return _got(store)


def _deleted(store: LayeredStore) -> list[Entry | None]:
    store.set(ACC, b"k2", Entry(2, 9, None))
    return _got(store)


def _changed_together(store: LayeredStore) -> list[Entry | None]:
    rows, _ = store.layer_of(ACC)
    rows[b"k5"] = Entry(2, 9, b"more")
    return _got(store)


def _cleared(store: LayeredStore) -> list[Entry | None]:
    store.clear(ACC)
    return _got(store)


READS: dict[str, Callable[[LayeredStore], object]] = {
    "get": _got,
    "page": lambda store: store.page(ACC, b"", 9).rows,
    "down": lambda store: store.page(ACC, b"z", 9, down=True).rows,
    "digests": lambda store: store.digests(ACC, b"", 9).found,
    "keys": lambda store: store.keys(ACC, b"", 9).found,
    "count": _counted,
    "least": lambda store: store.least(ACC),
    "walk": _summed_up,
    "changed": lambda store: store.changed(ACC),
    "below": lambda store: list(map(store.below(ACC), KEYS)),
    "as-frozen": lambda store: list(map(store.as_frozen(ACC), KEYS)),
    "none-of": lambda store: [has_none_of(store, ACC, [key]) for key in KEYS],
    "put": _put,
    "delete": _deleted,
    "together": _changed_together,
    "clear": _cleared,
}


def _store(*, frozen: bool, packed: bool) -> LayeredStore:
    """Two rows in a checkpoint; one of them is overwritten since, and another one is new."""
    store = LayeredStore(MemoryStore())
    for at in (1, 2):
        store.put(ACC, KEYS[at], Entry(1, at, b"old"))
    cleared, rows = store.freeze()
    store.base.write(CheckpointImage(1, {}, {ACC: b"state"}, {}, cleared, rows))
    store.thaw()
    for at in (2, 4):
        store.put(ACC, KEYS[at], Entry(1, at + 1, b"new"))
    if packed:
        store.pack(ACC)
        assert ACC not in store.layers[0].opened
    if frozen:
        store.freeze()
    return store


@pytest.mark.parametrize("frozen", [False, True], ids=["active", "frozen"])
@pytest.mark.parametrize("read", READS)
def test_whatever_is_asked_of_packed_rows_is_answered_as_if_they_were_open(read: str, frozen: bool) -> None:
    expected = READS[read](_store(frozen=frozen, packed=False))
    assert READS[read](_store(frozen=frozen, packed=True)) == expected
    assert expected is not None


def test_rows_that_were_overwritten_are_rows_all_the_same() -> None:
    """Else a fragment of which most was changed would be looked through to see that it has many."""
    store = _store(frozen=False, packed=False)
    assert store.least(ACC) == 2
    store.set(ACC, KEYS[1], Entry(2, 9, None))
    assert store.least(ACC) == 1


def test_nothing_but_its_rows_lists_what_was_deleted() -> None:
    """What lists very many grows in one step now and then, and whatever lists the same grows in the same turn."""
    store, many = LayeredStore(MemoryStore()), 5_000
    replica = Replica(store)
    keys = [b"k%d" % at for at in range(many)]
    for start, some in ((0, keys[:100]), (100, keys)):
        replica.apply(Update([Write(*ACC, 1, start, some, [None] * len(some))]))
    (found,) = that_hold_more(many // 2, [store])
    assert found.startswith(f"{many} in a dict")
    assert store.layers[0].dead[ACC] == many
    replica.apply(Update([Write(*ACC, 1, many + 100, keys[:-1], [b"v"] * (many - 1))]))
    assert store.layers[0].dead[ACC] == 1
    assert store.count(ACC, many) == (many - 1, many)
