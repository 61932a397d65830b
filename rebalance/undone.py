"""What stands under writes that were undone is written once more where nobody is left who could tell what stood before.

So it is where an operator has begun a partition again with a copy that had undone some: what stands there is what there
is. It is written in the new epoch, under counters of its own. Else a copy that never had those writes would stand at the
same counters, and have something else.

What a transaction holds that is prepared here comes after, whatever becomes of it. So what stands under its keys is written
below: all that lies above the common point moves up, in its order, and is issued again under counters that are new, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rebalance.deadlines import row_of, said, saying
from rebalance.fragment import FragmentState
from rebalance.issuing import Again, issued_first, write_in
from rebalance.messages import BYTES_A_WORK
from rebalance.partition import LocalPartition, PartitionState
from rebalance.ports import Node
from rebalance.supplying import BATCH_WORK, preload_of, some_as_they_are
from rebalance.tails import TAIL_BYTES_MAX
from wal import records as r
from wal.ids import EXPIRIES
from wal.probe import probe

WRITE_BYTES = 1 << 20
"""Of one write, about."""


def what_stands(core: Node, local: LocalPartition, again: Again, *, wanted: Callable[[], bool]) -> Iterator[int]:
    """Write once more, with what is issued `again`, what stands under the writes that this copy has undone; in pieces.

    What is too much for the batch that begins an epoch stays what it is, and so do keys that are held where what is
    prepared is too much: that is issued before, beside what it would have to move past. Where another copy has something
    else of these, comparing them finds it.
    """
    state = core.replica.partition(local.number)
    more = _OnceMore(core, local, state, again)
    for fragment in [f for f in state.fragments.values() if f.suspects and f.name[0] != EXPIRIES]:
        yield from more.write(fragment, wanted)
    if (deadlines := state.fragments.get(EXPIRIES)) is not None:  # by now it is known of which counters they are said
        yield from more.follow()
        yield from more.write(deadlines, wanted)
    again.writes[:] = [write_in(write.epoch, write, again) for write in again.writes] + more.writes


class _OnceMore:
    """What is written once more in one partition, and what the deadlines of that are to say."""

    def __init__(self, core: Node, local: LocalPartition, state: PartitionState, again: Again) -> None:
        self.writes: list[r.Write] = []
        self._core = core
        self._local = local
        self._state = state
        self._again = again
        self._room = TAIL_BYTES_MAX
        self._below: dict[bytes, bytes] = {}  # rows of `~ttl`, and what they are to say; these of what comes below
        self._above: dict[bytes, bytes] = {}

    def write(self, fragment: FragmentState, wanted: Callable[[], bool]) -> Iterator[int]:
        """All of one fragment that is in doubt; of the deadlines those, too, of entries that have other counters now."""
        core, namespace, lwm = self._core, fragment.name[0], fragment.counter.lwm
        held, keys, end = _to_be_written(self._state, fragment, self._again.writes)
        below, above = (self._below, self._above) if namespace == EXPIRIES else ({}, {})
        held = list(dict.fromkeys([*below, *(key for key in held if key not in above)]))
        keys = list(dict.fromkeys([*above, *(key for key in keys if key not in below)]))
        stays = list[bytes]()
        if held and issued_first(core, self._state):
            stays, held = held, []
        at = lwm
        while held and self._room > 0 and wanted():
            probe("promotion.wrote_below_what_is_prepared")
            at, size = self._once_more(fragment, held, at, self._below)
            yield size // BYTES_A_WORK
        if at > lwm:
            self._again.moved[namespace] = lwm, at - lwm
        at += end - lwm
        while keys and self._room > 0 and wanted():
            probe("promotion.wrote_once_more_what_was_undone")
            at, size = self._once_more(fragment, keys, at, self._above)
            yield size // BYTES_A_WORK
        stays += held + keys
        while stays and wanted():
            probe("promotion.kept_what_was_undone")
            rows, size = some_as_they_are(core, fragment.name, stays, BATCH_WORK, WRITE_BYTES)
            core.log(preload_of(fragment.name, rows))
            yield size // BYTES_A_WORK

    def _once_more(
        self, fragment: FragmentState, keys: list[bytes], start: int, lasting: dict[bytes, bytes]
    ) -> tuple[int, int]:
        """Write what stands under the last ones of these keys, which are taken out, above a counter; up to which, and how
        many bytes it is. `lasting` is told what expires of it."""
        core, namespace = self._core, fragment.name[0]
        rows, size = some_as_they_are(core, fragment.name, keys, BATCH_WORK, WRITE_BYTES)
        self._room -= size
        if namespace == EXPIRIES:
            told = self._below | self._above
            values = [told.get(key, entry.value if entry is not None else None) for key, entry in rows]
        else:
            values = [entry.value if entry is not None else None for _, entry in rows]
            for at, (key, entry) in enumerate(rows, start + 1):
                row = row_of(namespace, key)
                if entry is not None and (when := self._expires(row, entry.counter)) is not None:
                    lasting[row] = saying(when, at)
            core.work += len(rows)
        write = r.Write(*fragment.name, self._local.epoch, start, [key for key, _ in rows], values)
        self.writes.append(write)
        return write.end, size

    def follow(self) -> Iterator[int]:
        """What is issued again and has moved may expire, though its deadline is not issued again: that lies below no gap.
        Then it is said anew; and below, where a transaction holds it that is to say another one."""
        moved, again = self._again.moved, self._again.writes
        issued = dict.fromkeys(row for write in again if write.namespace == EXPIRIES for row in write.keys)
        prepared = (write for prepare in self._state.prepared.values() for write in prepare.writes)
        held = dict.fromkeys(row for write in prepared if write.namespace == EXPIRIES for row in write.keys)
        for write in [write for write in again if write.namespace in moved]:
            _, by = moved[write.namespace]
            for at, (key, value) in enumerate(zip(write.keys, write.values, strict=True), write.start + 1):
                row = row_of(write.namespace, key)
                if value is None or row in issued or (when := self._expires(row, at)) is None:
                    continue
                probe("promotion.a_deadline_followed")
                (self._below if row in held else self._above)[row] = saying(when, at + by)
            yield len(write.keys)

    def _expires(self, row: bytes, counter: int) -> int | None:
        """When the entry at a counter expires of which a row of `~ttl` may speak, if it does."""
        deadline = self._core.replica.store.get((EXPIRIES, self._local.number), row)
        if deadline is None or deadline.value is None:
            return None
        when, of = said(deadline.value)
        return when if of == counter else None


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
