"""Where keys belong."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wal.ids import partition_of, strays_of


@given(st.lists(st.binary(max_size=6) | st.binary(max_size=4).map(b"{%b}x".__mod__)), st.integers(0, 14), st.data())
def test_strays_are_the_keys_that_hash_to_another_partition(keys: list[bytes], bits: int, data: st.DataObject) -> None:
    partitions = 1 << bits
    places = sorted({partition_of(key, partitions) for key in keys}) or [0]
    partition = data.draw(st.sampled_from(places))
    found = strays_of(keys, partition, partitions)
    assert found == [at for at, key in enumerate(keys) if partition_of(key, partitions) != partition]
    assert strays_of([key for at, key in enumerate(keys) if at not in found], partition, partitions) == []
