"""What changed since the last checkpoint, and a checkpoint of it between its beginning and its last piece.

A checkpoint is the node as it was at one LSN. The rows that changed are frozen in one step (`store.freeze`), and what the
node knows of itself is taken down then; but to encode the state of every fragment that changed takes longer than a turn
may, and so may that of one of them, or of one partition. So it is done in pieces, and the node goes on in between.

It is one state all the same, because **what is about to change and was not taken down yet is taken down first** (`keep`),
which is quick, and encoded later from that: each state is encoded as it was at the LSN, whenever that is. A state of later
would not do, although to apply twice does no harm: its counters would know updates whose rows were not frozen, and
replaying these would pass them over, row and all. For the same reason the rows to which a state leaves its large values are
those that were frozen, and not what has become of them: a copy that was emptied meanwhile, and filled, may have older ones.

Nothing of it is on disk, and nothing rests on it, before the last piece is there: whoever crashes in between comes back
from the checkpoint before and from the log, which is trimmed only when the next one is written.
"""

from __future__ import annotations

from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from engine.state.encoding import Piece, pieces_of_fragment, pieces_of_node, pieces_of_partition
from engine.state.loaded import Encoded
from engine.state.node_image import NodeImage, version_in
from engine.state.rows import drop_tombstones
from engine.state.store import CheckpointImage, LayeredStore
from rebalance.by_fragment import ByFragment
from rebalance.by_key import parts_of
from rebalance.fragment import FragmentState
from rebalance.image import TakenFragment, TakenPartition, take_down, take_down_partition
from rebalance.partition import PartitionState
from wal.ids import COUNTER_MAX, Fragment

PRUNED_AT_ONCE = 200
"""Tombstones that are looked at, and dropped, in one piece."""
LOOKED_AT_ONCE = 32
"""Fragments that are looked at for them."""
LOOKED_OF_WORK = 4


class _States(NamedTuple):
    """Those that a checkpoint has encoded, as its image has them."""

    node: dict[str, Encoded]
    fragments: dict[Fragment, Encoded | None]
    partitions: dict[int, Encoded]


class Changes:
    """Fragments and partitions that changed since the last checkpoint began; and those that it has yet to encode."""

    def __init__(self, store: LayeredStore) -> None:
        self.number = 1  # of the next checkpoint: `FragmentState.changed_for` of those that are to be in it
        self.fragments = ByFragment[FragmentState | None]()  # None: it is gone
        self.partitions: dict[int, PartitionState] = {}
        self.encoded = 0  # states, since the node started
        self.encoded_entries = self.encoded_bytes = 0  # of these
        self._encoded_before = 0  # bytes, when the last checkpoint began
        self.states_bytes = 0  # of the last checkpoint that was encoded
        self._store = store
        self._image: _States | None = None  # of a checkpoint, and not whole
        self._node: NodeImage | None = None  # of that
        self._fragments_left = ByFragment[FragmentState | None]()
        self._partitions_left: dict[int, PartitionState] = {}
        self._fragments_taken = ByFragment[TakenFragment]()  # as they were, and not encoded yet
        self._partitions_taken: dict[int, TakenPartition] = {}

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
            self._take_down(name)

    def keep_partition(self, number: int) -> None:
        """The same for a partition."""
        if number in self._partitions_left:
            self._take_down_partition(number)

    def _take_down(self, name: Fragment) -> None:
        state = self._fragments_left.pop(name)
        if state is None:
            assert self._image is not None
            self._image.fragments[name] = None
            return
        self._fragments_taken[name] = take_down(state)
        if state.tombstones and not state.loading and state.stable > state.pruned:
            self.touch(state)  # some may have become so since `prune` that nobody needs

    def _take_down_partition(self, number: int) -> None:
        state = self._partitions_left.pop(number)
        self._partitions_taken[number] = take_down_partition(state.epoch, state.prepared.values(), state.results)

    def _drop_tombstones(self, fragment: FragmentState, keys: Sequence[bytes]) -> int:
        return drop_tombstones(self._store, fragment, keys)

    # A checkpoint.

    def prune(self, fragments: Mapping[Fragment, FragmentState], spared: Container[Fragment]) -> Iterator[int]:
        """Drop the tombstones that nobody needs any more, save those of `spared`: a checkpoint is the occasion for it.

        In pieces, each of which says how much work it was.
        """
        for at, name in enumerate(self.fragments.names()):
            fragment = fragments.get(name)
            if fragment is not None and fragment.tombstones:
                yield from self._prune(fragment, fragments, spared)
            if not at % LOOKED_AT_ONCE:
                yield LOOKED_OF_WORK

    def _prune(
        self, fragment: FragmentState, fragments: Mapping[Fragment, FragmentState], spared: Container[Fragment]
    ) -> Iterator[int]:
        """Of very many none may be one that goes, so each is looked at once."""
        name, stable = fragment.name, fragment.stable
        for part in parts_of(fragment.tombstones):
            keys = list(part)
            for at in range(0, len(keys), PRUNED_AT_ONCE):
                if fragment.loading or fragments.get(name) is not fragment or name in spared:
                    return
                yield 1 + self._drop_tombstones(fragment, keys[at : at + PRUNED_AT_ONCE])
        fragment.pruned = stable

    def freeze(self, lsn: int, node: NodeImage) -> CheckpointImage:
        """All that changed is to be stored as it is now; the image is whole when `pieces` has come to its end. O(1)."""
        assert self._image is None, "a checkpoint is being encoded"
        size = self._store.active_bytes
        cleared, rows = self._store.freeze()
        self._image, self._node = _States({}, {}, {}), node
        self._encoded_before = self.encoded_bytes
        self.number += 1
        self._fragments_left, self._partitions_left = self.fragments, self.partitions
        self.fragments, self.partitions = ByFragment(), {}
        return CheckpointImage(lsn, *self._image, cleared=cleared, rows=rows, weight=size)

    def pieces(self) -> Iterator[int]:
        """Encode what was frozen, state by state and each in pieces, every time saying how much work it was."""
        image, node = self._image, self._node
        assert image is not None, "nothing was frozen"
        assert node is not None, "nothing was frozen"
        image.node["node"] = yield from self._encode(pieces_of_node(node))
        for name in self._fragments_left.names():
            if name in self._fragments_left:
                self._take_down(name)
                if name in self._fragments_taken:
                    yield from self._store_fragment(image, name)
                else:
                    yield 1  # it is gone
        for name in self._fragments_taken.names():
            yield from self._store_fragment(image, name)
        for number in [*self._partitions_taken, *self._partitions_left]:
            if number in self._partitions_left:
                self._take_down_partition(number)
            yield from self._store_partition(image, number)
        self._image = self._node = None
        self.states_bytes = self.encoded_bytes - self._encoded_before
        self._partitions_left, self._partitions_taken = {}, {}  # an empty one takes what it took when it was full

    def _store_fragment(self, image: _States, name: Fragment) -> Iterator[int]:
        taken = self._fragments_taken.pop(name)
        row = partial(version_in, self._store.as_frozen(name))
        image.fragments[name] = yield from self._encode(pieces_of_fragment(taken, row))

    def _store_partition(self, image: _States, number: int) -> Iterator[int]:
        taken = self._partitions_taken.pop(number)
        image.partitions[number] = yield from self._encode(pieces_of_partition(taken))

    def _encode(self, pieces: Iterable[Piece]) -> Generator[int, None, Encoded]:
        data: list[bytes] = []
        for piece in pieces:
            if piece.data:
                data.append(piece.data)
            self.encoded_entries += piece.kept
            self.encoded_bytes += len(piece.data)
            yield piece.work
        self.encoded += 1
        return data if len(data) > 1 else data[0]
