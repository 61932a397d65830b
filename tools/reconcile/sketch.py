"""What a host says of its own directory, so that directories which nobody has in one place can be compared.

```
 sketch   survey, counters, epochs, digests, transactions; of each fragment sums over buckets of keys; a few MB for a
          million keys
 ask      the buckets that have to be seen: they differ, or a log speaks against its own store
 slice    the rows of these buckets, what the log says of their keys, and who wrote them last
```

A bucket is the keys whose hash begins with the same bits; its sum, of 128 bits, is over (key, version, value) of its live
rows. How many bits is each copy's own choice, by its number of rows: sums of buckets add up, so the deeper sketch is folded
to the other one, which makes the sums of a fragment a Merkle tree whose inner nodes nobody has to store. What only the log
can tell, a wrong value that all copies have, its host sees by itself, and marks the bucket (`odd`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from xxhash import xxh3_64_intdigest, xxh3_128_intdigest

from engine.errors import UsageError
from engine.offline.directory import FragmentView, PartitionView, State, read_directory
from engine.state.store import Entry, Row
from rebalance.table import Topology
from tools.reconcile.evidence import Asked, Trace, ask
from tools.reconcile.rows import INTERNAL
from tools.reconcile.share import log_rows, noting, open_share
from tools.reconcile.survey import Look, Survey, survey
from tools.reconcile.uncollected import uncollected
from tools.wal.rows import DELETED, LogRows, Rows, Said
from wal import PartitionCounter
from wal.ids import Fragment, Namespace, NodeId, Version

BUCKET_ROWS = 32
"""About so many rows share a bucket."""
DEPTH_MAX = 20
Depth = Annotated[int, msgspec.Meta(ge=0, le=DEPTH_MAX)]
SUM_BYTES = 16
_SUMS = (1 << (8 * SUM_BYTES)) - 1
_VERSION = struct.Struct(">QQ").pack

T = TypeVar("T")


class Leaves(msgspec.Struct, frozen=True):
    """The buckets of one copy of one fragment: 2**depth of them, in the order of their bits.

    `sums` are 16 bytes each; `live` rows have values; `top` is the highest counter of a bucket, tombstones included.
    `odd` have to be seen whatever others have.
    """

    depth: Depth
    sums: bytes
    live: list[int]
    top: list[int]
    odd: list[int]

    def __post_init__(self) -> None:
        count = 1 << self.depth
        if (len(self.sums), len(self.live), len(self.top)) != (count * SUM_BYTES, count, count):
            raise ValueError(f"a tree of depth {self.depth} has {count} buckets, and not what is here")

    def at(self, depth: int) -> Leaves:
        """The same at a smaller depth."""
        assert depth <= self.depth, f"a tree of depth {self.depth} has no level {depth}"
        wide = 1 << (self.depth - depth)
        sums = [int.from_bytes(self.sums[at : at + SUM_BYTES], "big") for at in range(0, len(self.sums), SUM_BYTES)]
        count = range(0, len(sums), wide)
        return Leaves(
            depth,
            b"".join((sum(sums[at : at + wide]) & _SUMS).to_bytes(SUM_BYTES, "big") for at in count),
            [sum(self.live[at : at + wide]) for at in count],
            [max(self.top[at : at + wide]) for at in count],
            sorted({bucket // wide for bucket in self.odd}),
        )

    def sum_of(self, bucket: int) -> bytes:
        """One bucket's sum."""
        return self.sums[bucket * SUM_BYTES : (bucket + 1) * SUM_BYTES]


class SketchedFragment(msgspec.Struct, frozen=True):
    """One copy of one fragment. `unequal` is of its rows and the digest that was written with them, if they differ."""

    view: FragmentView
    leaves: Leaves
    unequal: tuple[int, int] | None = None


class Sketch(msgspec.Struct, frozen=True, kw_only=True):
    """One directory. `unread` are partitions that cannot be folded, and why."""

    survey: Survey
    version: Version = Version(0, 0)
    partitions: dict[int, PartitionView] = {}
    fragments: list[SketchedFragment] = []
    unread: dict[int, str] = {}


class Bucket(msgspec.Struct, frozen=True):
    """What has to be seen of one fragment: buckets of a depth, and records of counters; of all above `cut`, each update."""

    namespace: Namespace
    partition: int
    depth: Depth
    buckets: list[int]
    runs: list[tuple[int, int]]
    cut: int

    @property
    def name(self) -> Fragment:
        """The fragment."""
        return self.namespace, self.partition

    def holds(self) -> Callable[[bytes], bool]:
        """Whether a key is in one of the buckets."""
        wanted, depth = frozenset(self.buckets), self.depth
        return lambda key: bucket_of(key, depth) in wanted


class Asking(msgspec.Struct, frozen=True):
    """All that has to be seen, of the directories of one cluster."""

    cluster: str
    fragments: list[Bucket]


class Heard(msgspec.Struct, frozen=True):
    """What a log says of some keys of one fragment: `tools.wal.rows.Rows`, as far as they are asked for."""

    said: dict[bytes, Said]
    unknown: list[bytes]
    above: int | None
    later: dict[bytes, list[Said]]
    before: dict[bytes, Said]

    def rows(self) -> Rows:
        """As the comparison takes it."""
        rows = Rows(above=self.above)
        for key, said in self.said.items():
            rows.put(key, said)
        rows.unknown.update(self.unknown)
        rows.later, rows.before = self.later, self.before
        return rows


class SlicedFragment(msgspec.Struct, frozen=True):
    """The asked buckets of one copy of one fragment, and what its log says of them, None where there is none to ask.

    `of` is what was asked.
    """

    of: Bucket
    view: FragmentView
    partition: PartitionView
    rows: list[tuple[bytes, int, int, bytes | None]]
    damaged: list[tuple[bytes | None, str]]
    heard: Heard | None
    newest: list[Trace]
    counters: list[Trace]


class Slice(msgspec.Struct, frozen=True):
    """What one directory has of what was asked. `unopened` is why some write of its log could not be opened: then nothing
    that the log says is the whole of it, and none of this is believed."""

    cluster: str
    node: NodeId
    version: Version
    fragments: list[SlicedFragment]
    unopened: str = ""


def bucket_of(key: bytes, depth: int) -> int:
    """Which bucket a key is in."""
    return xxh3_64_intdigest(key) >> (64 - depth)


# Made on the host of a directory.


@uncollected
def sketch_of(path: str) -> Sketch:
    """Look at one directory, all rows and all of its log."""
    with sketching(path) as (sketch, _):
        return sketch


@contextmanager
def sketching(path: str) -> Iterator[tuple[Sketch, State | None]]:
    """The sketch of a directory, and the very state that it is of; None where nothing of it can be read."""
    told = survey(Look(path))
    if told.usage:
        raise UsageError(told.usage)
    if told.problem or told.topology is None:
        yield Sketch(survey=told), None
        return
    every = range(len(told.topology.placements))
    state, unread = open_share(path, every)
    if state is None:
        yield Sketch(survey=told, unread=unread), None
        return
    with state:
        log = log_rows(state, _Every(), {}) if told.told.ended_ms and not told.told.damage else None
        if log is not None and log.unopened:
            unread |= dict.fromkeys(every, log.unopened)
            log = None
        fragments = [_sketched(state, name, log, told.topology) for name in sorted(state.fragments)]
        yield (
            Sketch(
                survey=told, version=state.version, partitions=dict(state.partitions), fragments=fragments, unread=unread
            ),
            state,
        )


class _Every:
    def __contains__(self, _: object) -> bool:
        return True


def _sketched(state: State, name: Fragment, log: LogRows | None, topology: Topology) -> SketchedFragment:
    view = state.fragments[name]
    damaged: dict[bytes | None, str] = {}
    rows = list(state.rows(name, noting(damaged)))
    depth = min(DEPTH_MAX, max(0, (len(rows) // BUCKET_ROWS)).bit_length())
    odd: set[int] = {bucket_of(key, depth) for key in damaged if key is not None}
    said = log.fragments.get(name, Rows()) if log is not None else None
    if None in damaged:
        odd.update(range(1 << depth))
    elif said is not None:
        odd |= {bucket_of(key, depth) for key in _against(rows, said, view.history_from)}
    if not name[0].startswith(INTERNAL):
        places = topology.places(name[0], [key for key, _ in rows])
        held = zip(rows, places, strict=True)
        odd |= {bucket_of(k, depth) for (k, e), at in held if e.value is not None and at != name[1]}
    return SketchedFragment(view, leaves_of(rows, depth, odd), state.unequal.get(name))


def _against(rows: Sequence[Row], said: Rows, history_from: int) -> Iterator[bytes]:
    """The keys of which a store has otherwise than its log."""
    seen = {key for key, _ in rows}
    for key, entry in rows:
        if said.judge(key, entry, history_from):
            yield key
    for key, one in said.said.items():
        if key not in seen and one.value != DELETED:
            yield key


def leaves_of(rows: Iterable[Row], depth: int, odd: Iterable[int] = ()) -> Leaves:
    """The buckets of these rows."""
    sums, live, top = [0] * (1 << depth), [0] * (1 << depth), [0] * (1 << depth)
    shift = 64 - depth
    for key, entry in rows:
        bucket, value, counter = xxh3_64_intdigest(key) >> shift, entry.value, entry.counter
        if value is not None:
            sums[bucket] += xxh3_128_intdigest(value, xxh3_64_intdigest(_VERSION(entry.epoch, counter) + key))
            live[bucket] += 1
        if counter > top[bucket]:
            top[bucket] = counter
    packed = b"".join((one & _SUMS).to_bytes(SUM_BYTES, "big") for one in sums)
    return Leaves(depth, packed, live, top, sorted(odd))


@uncollected
def slice_of(path: str, asking: Asking) -> Slice:
    """What a directory has of what was asked. Raises UsageError for another cluster's, CorruptionError."""
    asked = {one.name: one for one in asking.fragments}
    with read_directory(path, partitions={number for _, number in asked}, tolerant=True) as state:
        if state.topology is None or state.topology.cluster != asking.cluster:
            raise UsageError(f"{path} is of another cluster than these buckets: name a directory of {asking.cluster!r}")
        log = log_rows(state, asked, {name: one.cut for name, one in asked.items()})
        found = {name: _rows(state, one) for name, one in asked.items()}
        views = {name: state.fragments.get(name) or FragmentView(name, PartitionCounter()) for name in asked}
        traced: dict[Fragment, Asked] = {}
        for name, one in asked.items():
            rows, holds = log.fragments.get(name), one.holds()
            keys = [key for key, *_ in found[name][0]] + [key for key, _ in found[name][1] if key is not None]
            keys += [key for key in (rows.said if rows is not None else ()) if holds(key)]
            traced[name] = Asked(views[name].epochs, keys, one.runs)
        ask(state, traced)
        return Slice(
            asking.cluster,
            state.identity.node,
            state.version,
            [
                SlicedFragment(
                    one,
                    views[name],
                    state.partitions.get(name[1]) or PartitionView(),
                    *found[name],
                    heard=_heard(log.fragments.get(name) or Rows(), one),
                    newest=list(traced[name].newest.values()),
                    counters=list(traced[name].counters.values()),
                )
                for name, one in asked.items()
            ],
            log.unopened,
        )


def _rows(state: State, one: Bucket) -> tuple[list[tuple[bytes, int, int, bytes | None]], list[tuple[bytes | None, str]]]:
    damaged: dict[bytes | None, str] = {}
    rows, holds = state.rows(one.name, noting(damaged)), one.holds()
    found = [(key, entry.epoch, entry.counter, entry.value) for key, entry in rows if holds(key)]
    return found, [(key, what) for key, what in damaged.items() if key is None or holds(key)]


def _heard(rows: Rows, one: Bucket) -> Heard:
    holds = one.holds()
    return Heard(
        {key: said for key, said in rows.said.items() if holds(key)},
        sorted(key for key in rows.unknown if holds(key)),
        rows.above,
        {key: later for key, later in rows.later.items() if holds(key)},
        {key: said for key, said in rows.before.items() if holds(key)},
    )


# As files: a line that says what it is, then MessagePack.

_KINDS: Mapping[type[Any], bytes] = {
    Sketch: b"foreshore sketch 1\n",
    Slice: b"foreshore rows 1\n",
    Asking: b"foreshore buckets 1\n",
}


def encoded(thing: Sketch | Slice | Asking) -> bytes:
    """A file."""
    return _KINDS[type(thing)] + msgspec.msgpack.encode(thing, enc_hook=_counter_bytes)


def read_file(path: str) -> Sketch | Slice | Asking:
    """What a file has. Raises UsageError."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; name a file of `foreshore reconcile sketch`") from error
    return decoded(data, path)


def decoded(data: bytes, path: str) -> Sketch | Slice | Asking:
    """The inverse of `encoded`; `path` is where the bytes are from. Raises UsageError."""
    for kind, head in _KINDS.items():
        if data.startswith(head):
            try:
                found: Sketch | Slice | Asking = msgspec.msgpack.decode(data[len(head) :], type=kind, dec_hook=_counter)
            except (msgspec.DecodeError, ValueError) as error:
                raise UsageError(f"{path} is damaged: {error}; make it again") from None
            return found
    raise UsageError(f"{path} is no file of `foreshore reconcile sketch` or `rows`, or of another version: make it again")


def _counter_bytes(thing: Any) -> Any:
    if isinstance(thing, PartitionCounter):
        return thing.to_bytes()
    raise NotImplementedError(f"{type(thing).__name__} is not written to files")


def _counter(kind: type[Any], data: Any) -> Any:
    if kind is PartitionCounter and isinstance(data, bytes):
        return PartitionCounter.from_bytes(data)
    raise NotImplementedError(f"{kind.__name__} is not read from files")


def entry_of(row: tuple[bytes, int, int, bytes | None]) -> Row:
    """A row of a slice."""
    key, epoch, counter, value = row
    return key, Entry(epoch, counter, value)
