"""Batches that come to a copy before it can take them: the first of a supply that was demanded is still on its way, or the
map by which they were made.

That first batch may empty the copy, and would wipe what was taken meanwhile; and by another map somebody else may lead. So
they are put off until it is here, and are taken then. If the primary had to send them again they would come
`retransmit_ms` later; and since one batch is about many partitions, a write in one of which the copy is whole by now, and
waited for, would wait as long. Few are kept, and few bytes: it is a matter of milliseconds, and what is not kept is sent
again.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.data.sizes import size_of
from engine.messages import Replicate
from engine.turn.core import Core
from wal.ids import NodeId
from wal.probe import probe

BATCHES_MAX = 64
BYTES_MAX = 1 << 20
THE_MAP = -1
"""No partition: what waits for a map waits for nothing when that is here."""
TAKEN_AT_ONCE = 200
"""The work of those that a turn takes, whatever else it does: they do not wait behind what can be put off."""


class Early:
    """The batches that were put off, oldest first, and the partition whose supply each waits for, or `THE_MAP`."""

    def __init__(self) -> None:
        self._batches: dict[tuple[NodeId, int], tuple[int, Replicate]] = {}
        self._bytes = 0

    def keep(self, sender: NodeId, message: Replicate, partition: int | None) -> None:
        """Put a batch off until something of `partition` is supplied, where there is room. O(records)."""
        name, size = (sender, message.sequence), size_of(message.records)
        if partition is None or name in self._batches:
            return
        if len(self._batches) < BATCHES_MAX and self._bytes + size <= BYTES_MAX:
            probe("replicate.put_off_until_it_is_supplied")
            self._batches[name] = (partition, message)
            self._bytes += size

    def take(self, core: Core, demanded: Callable[[int], bool], take: Callable[[NodeId, Replicate], None]) -> None:
        """Have those taken that need not wait for their partition any more, some in each turn. O(kept), and their records.

        It is what was said, said once more: whoever takes it may find that it waits for another partition.
        """
        if not self._batches:  # how it nearly always is
            return
        room = core.work + TAKEN_AT_ONCE
        for name, (partition, message) in list(self._batches.items()):
            if core.work >= room:
                break
            if not demanded(partition):
                del self._batches[name]
                self._bytes -= size_of(message.records)
                take(name[0], message)
