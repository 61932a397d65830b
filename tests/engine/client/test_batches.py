"""A batch is atomic within each partition, however large it is; or it is refused, and nothing of it is done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import errors
from engine.client.batches import ASKING, REQUEST_BYTES, REQUEST_KEYS, batches_of, grown, pieces_of
from engine.protocol.sizes import KEYS_MAX, PART_BYTES_MAX, TRANSACTION_BYTES_MAX
from tests.support.maps import a_map
from wal.ids import partition_of


@given(
    st.dictionaries(st.binary(min_size=1, max_size=4), st.none() | st.binary(max_size=9), max_size=60),
    st.sampled_from([1, 4, 64]),
)
def test_every_key_is_asked_once_and_no_partition_twice(writes: dict[bytes, bytes | None], partitions: int) -> None:
    batches = batches_of("acc", writes, a_map(partitions))
    assert sorted(key for keys in batches for key in keys) == sorted(writes)
    numbers = [{partition_of(key, partitions) for key in keys} for keys in batches]
    assert sum(map(len, numbers)) == len(set().union(*numbers))


def test_a_partition_with_more_keys_than_a_request_has_is_one_request_all_the_same() -> None:
    keys = [b"%06d" % n for n in range(3 * REQUEST_KEYS)]
    (batch,) = batches_of("acc", dict.fromkeys(keys, b"v"), a_map(1))
    assert batch == keys
    many = batches_of("acc", dict.fromkeys(keys, b"v"), a_map(64))
    assert len(many) > 1
    assert max(map(len, many)) <= REQUEST_KEYS


def test_large_values_are_cut_by_their_bytes() -> None:
    value = bytes(REQUEST_BYTES // 4)
    assert len(batches_of("acc", {b"k%d" % n: value for n in range(40)}, a_map(16384))) >= 10


TOO_MANY = {b"%06d" % n: b"" for n in range(KEYS_MAX + 1)}
TOO_LARGE = dict.fromkeys((b"a", b"b"), bytes(PART_BYTES_MAX // 2))


@pytest.mark.parametrize("writes", [TOO_MANY, TOO_LARGE], ids=["keys", "bytes"])
def test_what_cannot_be_one_record_is_refused_and_nothing_of_it_is_done(writes: dict[bytes, bytes | None]) -> None:
    with pytest.raises(errors.UsageError, match="nothing was"):
        batches_of("acc", writes, a_map(1))


def test_a_transaction_with_too_many_keys_is_refused_before_anything_is_sent() -> None:
    all_but_one = dict.fromkeys(list(TOO_MANY)[:-2], b"")
    more = dict.fromkeys(list(TOO_MANY)[-3:-1], b"")
    assert grown(0, {}, all_but_one, "t") == 6 * (KEYS_MAX - 1)
    assert grown(6 * (KEYS_MAX - 1), all_but_one, more, "t", keys=KEYS_MAX - 1) == 6 * KEYS_MAX, "one of them is there"
    with pytest.raises(
        errors.UsageError, match=f"transaction t would write {KEYS_MAX + 1} keys: expected at most {KEYS_MAX}"
    ):
        grown(0, {}, TOO_MANY, "t")
    with pytest.raises(errors.UsageError, match=f"would write {KEYS_MAX + 1} keys"):
        grown(0, {}, {b"another": b""}, "t", keys=KEYS_MAX)


def test_a_transaction_with_too_many_bytes_is_refused_before_anything_is_sent() -> None:
    most = {b"k": bytes(TRANSACTION_BYTES_MAX - 1)}
    assert grown(0, {}, most, "t") == TRANSACTION_BYTES_MAX
    with pytest.raises(errors.UsageError, match=f"t would have {TRANSACTION_BYTES_MAX + 1} bytes: expected at most"):
        grown(TRANSACTION_BYTES_MAX, most, {b"l": b""}, "t")


@given(
    st.lists(st.lists(st.none() | st.binary(max_size=9), min_size=1, max_size=9), min_size=1, max_size=3),
    st.integers(1, 40) | st.integers(ASKING, 10 * ASKING),
    st.integers(1, 3),
)
def test_pieces_are_all_of_it_in_its_order_and_none_is_larger_than_need_be(
    values: list[list[bytes | None]], piece_bytes: int, every: int
) -> None:
    writes = [(f"n{at}", [b"k%d" % number for number in range(len(some))], some) for at, some in enumerate(values)]
    keys = [(namespace, key) for namespace, some, _ in writes for key in some]
    ttls = [(*key, 1 + at) for at, key in enumerate(keys) if not at % every]
    pieces = list(pieces_of(writes, ttls, piece_bytes))
    said = [
        (ns, key, value)
        for piece, _ in pieces
        for ns, some, theirs in piece
        for key, value in zip(some, theirs, strict=True)
    ]
    assert said == [(ns, key, v) for ns, some, theirs in writes for key, v in zip(some, theirs, strict=True)]
    assert [ttl for _, theirs in pieces for ttl in theirs] == ttls
    for at, (piece, theirs) in enumerate(pieces):
        sizes = [len(key) + len(v or b"") for _, some, vs in piece for key, v in zip(some, vs, strict=True)]
        assert sizes, "no piece is empty"
        assert len(sizes) == 1 or sum(sizes) <= piece_bytes
        assert [ns for ns, _, _ in piece] == sorted({ns for ns, _, _ in piece}), "each namespace once"
        assert len(sizes) == 1 or at != 1 or sum(sizes) <= piece_bytes // ASKING, "it asks for room"
        assert {ttl[:2] for ttl in theirs} <= {(ns, key) for ns, some, _ in piece for key in some}
