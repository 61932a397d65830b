"""What is kept of very many keys lies in parts, which are what a dict would be, and do not grow at the same time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebalance.by_key import FEW, PARTS, ByKey, InOrder, in_parts, parts_of, put_in, roomy
from rebalance.fragment import NOTHING

KEYS = st.binary(max_size=2)
DONE = st.lists(st.tuples(st.sampled_from(["set", "pop", "del", "update", "put in"]), KEYS, st.integers(0, 9)), max_size=60)


@given(DONE, st.booleans())
def test_it_is_a_dict_of_keys(done: list[tuple[str, bytes, int]], in_order: bool) -> None:
    model = {b"%d" % at: at for at in range(20)}
    kept: ByKey[int] = InOrder(model) if in_order else ByKey(model)
    for what, key, value in done:
        some = {key: value, key + b"x": value}
        match what:
            case "set":
                kept[key] = model[key] = value
            case "update":
                kept.update(some)
                model.update(some)
            case "put in":
                put_in(kept, ByKey(some))
                model.update(some)
            case _ if in_order:
                pass
            case "pop":
                assert kept.pop(key, -1) == model.pop(key, -1)
            case _ if key in model:
                del kept[key], model[key]
        assert (bool(kept), len(kept), dict(kept), dict(kept.items())) == (bool(model), len(model), model, model)
        assert (kept.get(key), kept.get(key, -1), key in kept) == (model.get(key), model.get(key, -1), key in model)
        assert sorted(kept.values()) == sorted(model.values())
        assert sorted(kept) == sorted(model)
        assert dict(kept.mapped(str)) == {key: str(value) for key, value in model.items()}
    if isinstance(kept, InOrder):
        assert [*kept][:20] == [*model][:20]


def test_who_has_them_in_order_has_the_new_ones_last() -> None:
    kept = InOrder({b"b": 1, b"a": 2})
    kept[b"d"] = kept[b"a"] = 3
    kept.update({b"c": 4, b"b": 5})
    assert [*kept] == [b"b", b"a", b"d", b"c"]
    put_in(kept, ByKey({b"e": 6, b"a": 7}))
    assert [*kept] == [b"b", b"a", b"d", b"c", b"e"]


@pytest.mark.parametrize("wide", [True, False])
def test_keys_are_told_apart_by_where_they_lie(wide: bool) -> None:
    keys = [b"%d" % at for at in range(300)]
    one: dict[bytes, int] | ByKey[int] = ByKey(dict.fromkeys(keys, 1)) if wide else dict.fromkeys(keys, 1)
    other: dict[bytes, int] = {}
    met: list[bytes] = []
    for some, (there, new) in in_parts(keys, one, other):
        assert new is other
        new.update(there)
        assert all(key in there for key in some)
        met += some
    assert sorted(met) == sorted(keys) == sorted(other)


def test_a_table_is_a_dict_as_long_as_few_are_in_it() -> None:
    few = {b"%d" % at: at for at in range(FEW)}
    assert roomy(few) is few
    many = roomy(few, 1)
    assert isinstance(many, ByKey)
    assert dict(many) == few
    assert roomy(many, FEW) is many
    assert roomy(NOTHING) == {}
    assert isinstance(roomy(NOTHING, FEW + 1), ByKey)
    assert parts_of(few) == [few]
    assert parts_of(many) == many.parts
    assert parts_of(NOTHING) == []


def test_no_part_is_large_and_few_of_them_grow_at_the_same_time() -> None:
    """A dict of so many is moved as a whole; and it is the same of parts of one size, when all of them grow at once."""
    count, sizes = 100_000, [2 * (1 << power) // 3 for power in range(3, 20)]  # at which a dict grows
    kept, moved, before = ByKey[None](), Counter[int](), [0] * PARTS
    for at in range(count):
        kept[b"key-%d" % at] = None
        if not at % 1_000:
            for number, part in enumerate(kept.parts):
                moved[at] += sum(size for size in sizes if before[number] <= size < len(part))
                before[number] = len(part)
    assert max(map(len, kept.parts)) < 2 * count // PARTS
    assert max(moved.values()) < count // 10
