"""What a layer packs: the rows of fragments to which nothing comes any more, until something does."""

from __future__ import annotations

import pytest

from engine.state.layer import PACKED_BYTES, PACKED_ROWS, Layer
from engine.state.store import Entry
from tests.support.weight import weight
from wal.ids import Fragment

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
    layer.dead[ACC] = {b"k": None}
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
