"""What is prepared may be large: whoever says it once more does so bit by bit."""

from __future__ import annotations

from rebalance.partition import PartitionState
from wal import records as r


def test_what_is_prepared_has_the_bytes_of_its_writes() -> None:
    state = PartitionState(0)
    assert state.prepared_bytes == 0
    written: list[list[bytes | None]] = [[b"v" * 100, None], [b""], []]
    for number, values in enumerate(written):
        keys = [b"key%d" % at for at in range(len(values))]
        tx = b"%d" % number
        state.prepared[tx] = r.Prepare(tx, 0, 1, [r.Write("acc", 0, 1, 0, keys, values)], [], [0], 0)
    assert state.prepared_bytes == 3 * 4 + 100
