"""What changed since the last checkpoint, and a checkpoint of it between its beginning and its last piece.

A checkpoint is the node as it was at one LSN. The rows that changed are frozen in one step (`store.freeze`), and what the
node knows of itself is encoded then; but to encode the state of every fragment that changed takes longer than a turn may,
so it is done in pieces, and the node goes on in between.

It is one state all the same, because **what is about to change and not encoded yet is encoded first** (`keep`), or, of a
partition, taken down: each state is encoded as it was at the LSN, whenever that is. A state of later would not do, although
to apply twice does no harm: its counters would know updates whose rows were not frozen, and replaying these would pass them
over, row and all.

Nothing of it is on disk, and nothing rests on it, before the last piece is there: whoever crashes in between comes back
from the checkpoint before and from the log, which is trimmed only when the next one is written.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from functools import partial

import msgspec

from engine.state.node_image import version_in
from engine.state.rows import drop_tombstones
from engine.state.store import CheckpointImage, LayeredStore
from rebalance.by_fragment import ByFragment
from rebalance.fragment import FragmentState
from rebalance.image import PartitionImage, image_of, partition_image
from rebalance.partition import PartitionState
from wal.ids import COUNTER_MAX, Fragment

PRUNED_AT_ONCE = 200
"""Tombstones that are dropped in one piece."""
LOOKED_AT_ONCE = 32
"""Fragments that are looked at for them."""
LOOKED_OF_WORK = 4
KEYS_OF_WORK = 16
"""So many keys of a state that is encoded are as much work as the state; and so many answers of a partition."""
BYTES_OF_WORK = 16 << 10
"""And so many bytes, where something is prepared: that is in it with its values."""


class Changes:
    """Fragments and partitions that changed since the last checkpoint began; and those that it has yet to encode."""

    def __init__(self, store: LayeredStore) -> None:
        self.number = 1  # of the next checkpoint: `FragmentState.changed_for` of those that are to be in it
        self.fragments = ByFragment[FragmentState | None]()  # None: it is gone
        self.partitions: dict[int, PartitionState] = {}
        self.encoded = 0  # states, since the node started
        self._store = store
        self._image: CheckpointImage | None = None  # that is not whole
        self._fragments_left = ByFragment[FragmentState | None]()
        self._partitions_left: dict[int, PartitionState] = {}
        self._partitions_taken: dict[int, PartitionImage] = {}  # as they were, and not encoded yet

    # Before a state changes.

    def touch(self, fragment: FragmentState) -> None:
        """A fragment is about to change: the next checkpoint stores it, and one under way stores it as it is."""
        if fragment.changed_for == self.number:
            return
        self.begin(fragment)
        self.begun(fragment)

    def begun(self, fragment: FragmentState) -> None:
        """What was about to change has."""
        fragment.changed_for = self.number
        self.fragments[fragment.name] = fragment

    def begin(self, fragment: FragmentState) -> None:
        """It may change now, for the first time since the last checkpoint: one under way has it as it was.

        Of a copy that is not whole rows may be here of counters that it has not reached.
        """
        self.keep(fragment.name)
        whole = not fragment.loading and not fragment.suspects
        self._store.begin(fragment.name, fragment.counter.highest_applied if whole else COUNTER_MAX)

    def touch_partition(self, number: int, state: PartitionState) -> None:
        """The same for a partition."""
        self.keep_partition(number)
        self.partitions[number] = state

    def drop(self, name: Fragment) -> None:
        """A fragment is about to go."""
        self.keep(name)
        self.fragments[name] = None

    def keep(self, name: Fragment) -> None:
        """A fragment may change now: a checkpoint under way has it as it was."""
        if name in self._fragments_left:
            self._store_fragment(name)

    def keep_partition(self, number: int) -> None:
        """The same for a partition. What is prepared there may be large, so only what it refers to is taken down now."""
        state = self._partitions_left.pop(number, None)
        if state is not None:
            self._partitions_taken[number] = partition_image(state.epoch, state.prepared.values(), state.results)

    def _encode(self, state: FragmentState) -> tuple[bytes, int]:
        image = image_of(state, partial(version_in, self._store.get, state.name))
        if state.tombstones and not state.loading and state.droppable(1):
            self.touch(state)  # they became so since `prune`
        self.encoded += 1
        work = 1 + (len(image.tombstones) + sum(len(write.keys) for write in image.tail)) // KEYS_OF_WORK
        return msgspec.msgpack.encode(image), work

    def _drop_tombstones(self, fragment: FragmentState) -> int:
        return drop_tombstones(self._store, fragment, PRUNED_AT_ONCE)

    # A checkpoint.

    def prune(self, fragments: Mapping[Fragment, FragmentState], spared: Container[Fragment]) -> Iterator[int]:
        """Drop the tombstones that nobody needs any more, save those of `spared`: a checkpoint is the occasion for it.

        In pieces, each of which says how much work it was.
        """
        for at, name in enumerate(self.fragments.names()):
            dropped = PRUNED_AT_ONCE
            while dropped == PRUNED_AT_ONCE:
                fragment = fragments.get(name)
                if fragment is None or fragment.loading or not fragment.tombstones or name in spared:
                    break
                dropped = self._drop_tombstones(fragment)
                yield dropped
            if not at % LOOKED_AT_ONCE:
                yield LOOKED_OF_WORK

    def freeze(self, lsn: int, node: bytes) -> CheckpointImage:
        """All that changed is to be stored as it is now; the image is whole when `pieces` has come to its end. O(1)."""
        assert self._image is None, "a checkpoint is being encoded"
        size = self._store.active_bytes
        cleared, rows = self._store.freeze()
        image = self._image = CheckpointImage(
            lsn, {"node": node}, fragments={}, partitions={}, cleared=cleared, rows=rows, weight=size
        )
        self.number += 1
        self._fragments_left, self._partitions_left = self.fragments, self.partitions
        self.fragments, self.partitions = ByFragment(), {}
        return image

    def pieces(self) -> Iterator[int]:
        """Encode what was frozen, state by state, each time saying how much work it was."""
        for name in self._fragments_left.names():
            if name in self._fragments_left:
                yield self._store_fragment(name)
        for number in list(self._partitions_left):
            self.keep_partition(number)
            if number in self._partitions_taken:
                yield self._store_partition(number)
        for number in list(self._partitions_taken):
            yield self._store_partition(number)
        self._image = None
        self._partitions_left = {}  # it is empty, and takes what it took when it was full

    def _store_fragment(self, name: Fragment) -> int:
        assert self._image is not None
        state = self._fragments_left.pop(name)
        if state is None:
            self._image.fragments[name] = None
            return 1
        self._image.fragments[name], work = self._encode(state)
        return work

    def _store_partition(self, number: int) -> int:
        assert self._image is not None
        self.encoded += 1
        image = self._partitions_taken.pop(number)
        encoded = self._image.partitions[number] = msgspec.msgpack.encode(image)
        keys = sum(len(write.keys) for prepare in image.prepared for write in prepare.writes)
        work = 1 + (len(image.results) + keys) // KEYS_OF_WORK
        return work + len(encoded) // BYTES_OF_WORK if image.prepared else work
