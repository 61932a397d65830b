"""What stands under writes that were undone is written once more where nobody is left who could tell what stood before.

So it is where an operator has begun a partition again with a copy that had undone some: what stands there is what there
is. It is written in the new epoch, under counters of its own. Else a copy that never had those writes would stand at the
same counters, and have something else.

What a transaction holds that is prepared here comes after, whatever becomes of it. So what stands under its keys is written
below: all that lies above the common point moves up, in its order, and is issued again under counters that are new, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rebalance.fragment import FragmentState
from rebalance.issuing import Again, issued_first, write_in
from rebalance.messages import BYTES_A_WORK
from rebalance.partition import LocalPartition, PartitionState
from rebalance.ports import Node
from rebalance.supplying import BATCH_WORK, preload_of, some_as_they_are
from rebalance.tails import TAIL_BYTES_MAX
from wal import records as r
from wal.probe import probe

WRITE_BYTES = 1 << 20
"""Of one write, about."""


def what_stands(core: Node, local: LocalPartition, again: Again, *, wanted: Callable[[], bool]) -> Iterator[int]:
    """Write once more, with what is issued `again`, what stands under the writes that this copy has undone; in pieces.

    What is too much for the batch that begins an epoch stays what it is, and so do keys that are held where what is
    prepared is too much: that is issued before, beside what it would have to move past. Where another copy has something
    else of these, comparing them finds it.
    """
    state, room = core.replica.partition(local.number), TAIL_BYTES_MAX
    for fragment in [fragment for fragment in state.fragments.values() if fragment.suspects]:
        held, keys, end = _to_be_written(state, fragment, again.writes)
        stays = list[bytes]()
        if held and issued_first(core, state):
            stays, held = held, []
        below, start = list[r.Write](), fragment.counter.lwm
        while held and room > 0 and wanted():
            probe("promotion.wrote_below_what_is_prepared")
            write, size = _once_more(core, local, fragment, held, start)
            below.append(write)
            start = write.end
            room -= size
            yield size // BYTES_A_WORK
        if moved := start - fragment.counter.lwm:
            again.moved[fragment.name[0]] = moved
            _move_up(fragment, again, moved, below)
        start = end + moved
        while keys and room > 0 and wanted():
            probe("promotion.wrote_once_more_what_was_undone")
            write, size = _once_more(core, local, fragment, keys, start)
            again.writes.append(write)
            start = write.end
            room -= size
            yield size // BYTES_A_WORK
        stays += held + keys
        while stays and wanted():
            probe("promotion.kept_what_was_undone")
            rows, size = some_as_they_are(core, fragment.name, stays, BATCH_WORK, WRITE_BYTES)
            core.log(preload_of(fragment.name, rows))
            yield size // BYTES_A_WORK


def _once_more(
    core: Node, local: LocalPartition, fragment: FragmentState, keys: list[bytes], start: int
) -> tuple[r.Write, int]:
    """What stands under the last ones of these keys, which are taken out, as a write of this epoch; and how large it is."""
    rows, size = some_as_they_are(core, fragment.name, keys, BATCH_WORK, WRITE_BYTES)
    values = [entry.value if entry is not None else None for _, entry in rows]
    return r.Write(*fragment.name, local.epoch, start, [key for key, _ in rows], values), size


def _move_up(fragment: FragmentState, again: Again, moved: int, below: list[r.Write]) -> None:
    """Make room for what comes `below` all that is issued again of a fragment."""
    for at, write in enumerate(again.writes):
        if write.namespace == fragment.name[0]:
            again.writes[at] = write_in(write.epoch, write, moved)
    again.writes.extend(below)


def _to_be_written(
    state: PartitionState, fragment: FragmentState, again: list[r.Write]
) -> tuple[list[bytes], list[bytes], int]:
    """Of the keys that are in doubt, which a transaction holds and which are written once more; and above which counter."""
    namespace, end = fragment.name[0], fragment.counter.lwm
    held: dict[bytes, None] = {}
    issued: dict[bytes, None] = {}
    for write in again:
        if write.namespace == namespace:
            issued |= dict.fromkeys(write.keys)
            end = max(end, write.end)
    for prepare in state.prepared.values():
        for write in prepare.writes:
            if write.namespace == namespace:
                held |= dict.fromkeys(write.keys)
                end = max(end, write.end)
    keys = [key for key in fragment.suspects if key not in issued]
    return [key for key in keys if key in held], [key for key in keys if key not in held], end
