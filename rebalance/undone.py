"""What stands under writes that were undone is written once more where nobody is left who could tell what stood before.

So it is where an operator has begun a partition again with a copy that had undone some: what stands there is what there
is. It is written in the new epoch, under counters of its own. Else a copy that never had those writes would stand at the
same counters, and have something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rebalance.fragment import FragmentState
from rebalance.messages import BYTES_A_WORK
from rebalance.partition import LocalPartition, PartitionState
from rebalance.ports import Node
from rebalance.supplying import BATCH_WORK, preload_of, some_as_they_are
from rebalance.tails import TAIL_BYTES_MAX
from wal import records as r
from wal.probe import probe

WRITE_BYTES = 1 << 20
"""Of one write, about."""


def what_stands(core: Node, local: LocalPartition, again: list[r.Write], *, wanted: Callable[[], bool]) -> Iterator[int]:
    """Write once more, with what is issued `again`, what stands under the writes that this copy has undone; in pieces.

    What is prepared holds counters below, and is to come after: so what it writes stays what it is, and so does what is too
    much for the batch that begins an epoch. Where another copy has something else of these, comparing them finds it.
    """
    state, room = core.replica.partition(local.number), TAIL_BYTES_MAX
    for fragment in [fragment for fragment in state.fragments.values() if fragment.suspects]:
        keys, stays, start = _to_be_written(state, fragment, again)
        while keys and room > 0 and wanted():
            probe("promotion.wrote_once_more_what_was_undone")
            rows, size = some_as_they_are(core, fragment.name, keys, BATCH_WORK, WRITE_BYTES)
            values = [entry.value if entry is not None else None for _, entry in rows]
            again.append(r.Write(*fragment.name, local.epoch, start, [key for key, _ in rows], values))
            start += len(rows)
            room -= size
            yield size // BYTES_A_WORK
        stays += keys
        while stays and wanted():
            probe("promotion.kept_what_was_undone")
            rows, size = some_as_they_are(core, fragment.name, stays, BATCH_WORK, WRITE_BYTES)
            core.log(preload_of(fragment.name, rows))
            yield size // BYTES_A_WORK


def _to_be_written(
    state: PartitionState, fragment: FragmentState, again: list[r.Write]
) -> tuple[list[bytes], list[bytes], int]:
    """Of the keys that are in doubt, which are written once more and which stay; and above which counter."""
    namespace, start = fragment.name[0], fragment.counter.lwm
    held: dict[bytes, None] = {}
    issued: dict[bytes, None] = {}
    for write in again:
        if write.namespace == namespace:
            issued |= dict.fromkeys(write.keys)
            start = max(start, write.end)
    for prepare in state.prepared.values():
        for write in prepare.writes:
            if write.namespace == namespace:
                held |= dict.fromkeys(write.keys)
                start = max(start, write.end)
    keys = [key for key in fragment.suspects if key not in issued and key not in held]
    return keys, [key for key in fragment.suspects if key in held and key not in issued], start
