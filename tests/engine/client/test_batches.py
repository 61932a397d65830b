"""A batch is atomic within each partition, however large it is; or it is refused, and nothing of it is done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import errors
from engine.client.batches import PART_BYTES_MAX, REQUEST_BYTES, REQUEST_KEYS, batches_of, grown
from engine.protocol.limits import KEYS_MAX
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
