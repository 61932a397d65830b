"""What a checkpoint stores of a partition and of its fragments, and how a copy comes back from it.

A checkpoint holds the rows as well, so a value of the tail that is large is left to the row of its key, where that has it.
What does not hold together is refused: the checkpoint and the log are all that a node has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec

from rebalance.by_key import ByKey, copy_of
from rebalance.fragment import FragmentState
from rebalance.results import Results
from wal import records as r
from wal.counters import PartitionCounter
from wal.ids import Fragment, TxId, fragment_name
from wal.records import Write

LARGE_BYTES = 256
"""A value of the tail that is larger is not stored twice: the image says that the row of its key has it."""


class FragmentImage(msgspec.Struct, frozen=True, array_like=True):
    """A fragment as a checkpoint stores it. `held` are values of the tail, as (write, key) by position, that the rows of
    the same checkpoint have; they are empty in `tail`."""

    counter: bytes
    epochs: list[tuple[int, int]]
    stable: int
    stable_digest: int
    tail: list[Write]
    digests: list[tuple[int, int]]
    loading: bool
    history_from: int
    suspects: list[bytes]
    tombstones: list[tuple[bytes, int]]
    held: list[tuple[int, int]] = []


Row: TypeAlias = Callable[[bytes], tuple[int, int, bytes | None] | None]
"""What the row of a key has: epoch, counter, value."""


class PartitionImage(msgspec.Struct, frozen=True, array_like=True):
    """A partition as a checkpoint stores it."""

    epoch: int
    prepared: list[r.Prepare]
    results: list[tuple[TxId, int]]
    floor: TxId
    answers: list[tuple[TxId, bytes]] = []


class Pairs(msgspec.Struct, frozen=True):
    """What a mapping had, as two lists: to copy the mapping itself takes twice as long, where it has a million."""

    keys: list[bytes]
    values: list[Any]

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[tuple[bytes, Any]]:
        return zip(self.keys, self.values, strict=True)


def pairs_of(mapping: Mapping[bytes, Any]) -> Pairs:
    """What it has now."""
    return Pairs([*mapping], [*mapping.values()])


class TakenFragment(NamedTuple):
    """A fragment as it was when it was taken down, to be made a `FragmentImage` of later, field by field.

    To take down is quick, whatever there is: records do not change, and what holds them is copied without a look at them.
    """

    counter: bytes
    epochs: tuple[tuple[int, int], ...]
    stable: int
    stable_digest: int
    tail: list[Write]
    digests: tuple[tuple[int, int], ...]
    loading: bool
    history_from: int
    suspects: Collection[bytes]
    tombstones: Pairs | ItemsView[bytes, int]


class TakenPartition(NamedTuple):
    """The same for a partition, and a `PartitionImage`."""

    epoch: int
    prepared: list[r.Prepare]
    results: Pairs
    floor: TxId
    answers: Pairs


def take_down(fragment: FragmentState) -> TakenFragment:
    """What a checkpoint stores of a fragment as it is now. Where very many keys lie in parts these are copied: two lists of
    all take four times as long."""
    suspects, tombstones = fragment.suspects, fragment.tombstones
    return TakenFragment(
        counter=fragment.counter.to_bytes(),
        epochs=fragment.epochs,
        stable=fragment.stable,
        stable_digest=fragment.stable_digest,
        tail=[*(write for _, _, write in fragment.unstable), *fragment.beyond.values()],
        digests=fragment.digests,
        loading=fragment.loading,
        history_from=fragment.history_from,
        suspects=copy_of(suspects).keys() if isinstance(suspects, ByKey) else list(suspects),
        tombstones=copy_of(tombstones).items() if isinstance(tombstones, ByKey) else pairs_of(tombstones),
    )


def take_down_partition(epoch: int, prepared: Iterable[r.Prepare], results: Results) -> TakenPartition:
    """What a checkpoint stores of a partition, beside its fragments."""
    return TakenPartition(epoch, [*prepared], pairs_of(results.outcomes()), results.floor, pairs_of(results.answers()))


def fragment_of(name: Fragment, image: FragmentImage, row: Row | None = None) -> FragmentState:
    """The inverse of `image_of`; raises ValueError for an image that does not hold together."""
    tail = _filled(name, image, row) if image.held else image.tail
    state = FragmentState.from_stable(name, (image.stable, image.stable_digest), image.epochs, tail)
    state.digests = tuple(image.digests)
    stored = PartitionCounter.from_bytes(image.counter)
    if (stored.lwm, stored.ranges) != (state.counter.lwm, state.counter.ranges):
        raise ValueError(f"{fragment_name(name)}: the checkpoint says {stored}, its tail says {state.counter}")
    state.loading = image.loading
    state.history_from = image.history_from
    state.doubt(dict.fromkeys(image.suspects, 0))
    if state.loading and state.suspects:
        suspects = state.suspects
        for write in state.tail():  # in order: the last one to have written a key
            state.doubt({key: at for at, key in enumerate(write.keys, write.start + 1) if key in suspects})
    state.bury_all(dict(image.tombstones))
    state.dropped = image.stable
    return state


def _with(tail: list[Write], put: list[tuple[int, int, bytes]]) -> list[Write]:
    values = {at: list(tail[at].values) for at in dict.fromkeys(at for at, _, _ in put)}
    for at, position, value in put:
        values[at][position] = value
    return [msgspec.structs.replace(w, values=values[at]) if at in values else w for at, w in enumerate(tail)]


def _filled(name: Fragment, image: FragmentImage, row: Row | None) -> list[Write]:
    """The tail of an image with the values that its rows have."""
    put: list[tuple[int, int, bytes]] = []
    for at, position in image.held:
        if not (0 <= at < len(image.tail) and 0 <= position < len(image.tail[at].keys)):
            raise ValueError(f"{fragment_name(name)}: the checkpoint says that a row has value {position} of write {at}")
        write = image.tail[at]
        version = (write.epoch, write.start + position + 1)
        found = row(write.keys[position]) if row is not None else None
        if found is None or found[:2] != version or found[2] is None:
            raise ValueError(f"{fragment_name(name)}: expected a row of version {version} for its tail, found {found}")
        put.append((at, position, found[2]))
    return _with(image.tail, put)
