"""What a rule of this package may see of its node, and the four ways in which it may owe something.

A rule decides; the node that it is part of satisfies these protocols, and nothing else of it is known here. What a rule
may see: the time, the map, what this node is to each partition and has of it, and its settings. What it may owe: a record
that is folded in and logged (`log`), a record that is only logged because it does not count yet (`log_unapplied`), a
message that leaves once the log is durable (`send`), and something slow that ends in an event (`task`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

import msgspec

from rebalance.by_fragment import ByFragment
from rebalance.contents import Entry, Reading, Walk
from rebalance.fragment import FragmentState
from rebalance.links import AllLinks
from rebalance.messages import CopyMessage
from rebalance.partition import LocalPartition, PartitionState
from rebalance.table import Topology
from wal import records as r
from wal.ids import Fragment, NodeId, Version
from wal.want import Want

MS = 1_000_000
"""Nanoseconds in a millisecond: settings are in one, the node's clock in the other."""

WORK_MAX = 2_000
"""What a turn does before it leaves the rest to the next one: one is a key, a row or a record, about 10 us of a slow
processor. Who does work says so in `Node.work`; who could do too much does a piece, and asks for the rest (`resume`)."""
BYTES_OF_WORK = 4 << 10
"""So many bytes of what may be large are as much work, whoever logs or says them: a turn has room for 8 MiB."""
LITTLE = WORK_MAX // 10
"""What a turn does of what nobody waits for, so that whoever waits for something else hardly notices."""


T = TypeVar("T")


def all_of(pieces: Generator[int, None, T]) -> T:
    """What comes of all pieces, made one after the other."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            result: T = end.value
            return result


class OpenHistory(msgspec.Struct, frozen=True, gc=False):
    """Pin the log and begin to read what is wanted of it for a supply session."""

    session: tuple[NodeId, int]
    wants: list[Want]


class ReadHistory(msgspec.Struct, frozen=True, gc=False):
    """Read on, about this many bytes and updates, and one write at least; then `HistoryRead`."""

    session: tuple[NodeId, int]
    bytes: int
    updates: int


class CloseHistory(msgspec.Struct, frozen=True, gc=False):
    """The supply session is over: unpin."""

    session: tuple[NodeId, int]


HistoryTask: TypeAlias = OpenHistory | ReadHistory | CloseHistory


class HistoryRead(msgspec.Struct, frozen=True, gc=False):
    """Some of the history that a supply session reads; at the end, the fragments that could not be given whole."""

    session: tuple[NodeId, int]
    writes: list[r.Write]
    done: bool
    missed: list[tuple[str, int]]


class Settings(Protocol):
    """The settings that rebalancing asks for: `engine.turn.settings` says what each means."""

    @property
    def retransmit_ms(self) -> int: ...
    @property
    def link_bytes_per_s(self) -> int: ...
    @property
    def supply_credit(self) -> int: ...
    @property
    def supply_batch_bytes(self) -> int: ...
    @property
    def max_parallel_migrations(self) -> int: ...
    @property
    def prefer_history(self) -> bool: ...
    @property
    def anti_entropy_ms(self) -> int: ...
    @property
    def mutations_bytes(self) -> int: ...


class Page(Protocol):
    """Some rows of a fragment, in order of their keys."""

    @property
    def rows(self) -> Sequence[tuple[bytes, Entry]]:
        """The rows."""

    @property
    def next(self) -> bytes | None:
        """Where to go on; None if no row is left."""

    @property
    def work(self) -> int:
        """Entries looked at."""


class Glance(Protocol):
    """What was asked of some entries of a fragment, in order of their keys: tombstones, and what is gone, among them."""

    @property
    def found(self) -> Sequence[tuple[bytes, int]]:
        """Each key, with the digest of its row, or 0 for none."""

    @property
    def next(self) -> bytes | None:
        """Where to go on; None if nothing is left."""

    @property
    def work(self) -> int:
        """What it was to look."""


class Above(Protocol):
    """What was applied since a checkpoint and lies above the store, by fragment; what was removed has counter 0.

    `since`: of each fragment in it, the counter above which nothing had been applied when it began to change.
    """

    @property
    def since(self) -> Mapping[Fragment, int]: ...
    @property
    def rows(self) -> Mapping[Fragment, Mapping[bytes, Entry]]: ...
    @property
    def cleared(self) -> Container[Fragment]: ...


class Rows(Protocol):
    """The rows of this node's copies."""

    @property
    def layers(self) -> Sequence[Above]:
        """What lies above the store, the newest first."""

    def get(self, name: Fragment, key: bytes, /) -> Entry | None:
        """What a key has."""

    def page(self, name: Fragment, start: bytes, limit: int, /) -> Page:
        """Some rows from `start` on."""

    def digests(self, name: Fragment, start: bytes, limit: int, /) -> Glance:
        """The digests of some rows from `start` on (`rebalance.contents`)."""

    def keys(self, name: Fragment, start: bytes, limit: int, /) -> Glance:
        """Some keys from `start` on, without a look at what they have: each with a 0."""

    def count(self, name: Fragment, most: int, /) -> tuple[int | None, int]:
        """How many rows a fragment has, tombstones aside; None if that is not known. And how much work it was: above `most`
        if it is to be asked again first."""

    def least(self, name: Fragment, /) -> int:
        """No fewer rows than so many, without a look at any."""

    def walk(self, name: Fragment, /) -> Callable[[], Walk | None]:
        """Says what to go through to sum up what a fragment contains now; None: that cannot be done."""

    def overtaken(self, walk: Walk, /) -> bool:
        """Whether a checkpoint has overtaken it, so that no step of it is taken any more."""

    def walked(self, walk: Walk, /) -> int | None:
        """The digest that a walk has come to; None if a checkpoint has overtaken it."""

    def changed(self, name: Fragment, /) -> int:
        """How many keys of a fragment were written since the last checkpoint, about: what `walk` would look up."""

    def prove(self, name: Fragment, /) -> Reading:
        """Begin to read what the store below holds of a fragment."""


class Copies(Protocol):
    """What this node has."""

    links: AllLinks
    """How what came live to copies that are being filled follows their transfers."""

    @property
    def fragments(self) -> Mapping[Fragment, FragmentState]:
        """All that it has anything of."""

    @property
    def tails(self) -> ByFragment[None]:
        """Those of them that may have a tail."""

    def drop_tail(self, name: Fragment, /) -> None:
        """One was found to have none."""

    @property
    def store(self) -> Rows:
        """The rows."""

    @property
    def partitions(self) -> Mapping[int, PartitionState]:
        """Those of which it has anything."""

    def partition(self, number: int, /) -> PartitionState:
        """What it has of a partition; an empty one, which is nobody's and stays so, if that is nothing."""

    def unconfirmed(self, fragment: FragmentState, lwm: int, /) -> list[bytes]:
        """Keys of a fragment in doubt of which a transfer up to `lwm` has not told."""

    def fragment(self, name: Fragment, /) -> FragmentState:
        """What it has of a fragment; the same, if that is nothing."""


class Fence(Protocol):
    """What the fence is made of (`may_act`): the committed map, and what this node is under it."""

    @property
    def fence(self) -> Version:
        """Of the committed map, or of the last one before it that was no light step."""

    @property
    def frozen(self) -> bool:
        """Whether the map is being left: nothing is replicated or supplied under it any more."""

    @property
    def serving(self) -> bool:
        """Whether the map lists this life."""

    @property
    def local(self) -> list[LocalPartition]:
        """What this node is to each partition."""


class Node(Fence, Protocol):
    """The node that a rule is part of."""

    work: int
    slow_until: int
    """Its log took long to sync lately: until then it had better ask for nothing."""

    @property
    def node(self) -> NodeId:
        """Its name."""

    @property
    def run(self) -> int:
        """How often it has started."""

    @property
    def now(self) -> int:
        """Its time, in ns."""

    @property
    def asked(self) -> int:
        """How many requests of clients it has taken since it started."""

    def crowded(self) -> bool:
        """As much lies in memory, in no checkpoint, as a transfer may bring there, or the disk has no room: it waits."""

    @property
    def is_cramped(self) -> bool:
        """The disk has no room: what nobody waits for is not taken."""

    def is_backlogged(self) -> bool:
        """So much lies there that clients have to wait for the store, where they wait for this node at all."""

    @property
    def settings(self) -> Settings:
        """What rebalancing is to keep to."""

    @property
    def topology(self) -> Topology | None:
        """The committed map."""

    @property
    def replica(self) -> Copies:
        """What it has."""

    def log(self, record: r.Record) -> None:
        """Fold a record in, and owe it to the log."""

    def log_unapplied(self, record: r.Record) -> None:
        """Owe a record to the log that does not count yet: it is folded in when it does."""

    def send(self, to: NodeId, message: CopyMessage) -> None:
        """Say something once this turn's log is durable."""

    def task(self, task: HistoryTask) -> None:
        """Have something slow done."""

    def note(self, text: str) -> None:
        """Tell the operator."""

    def resume(self, go_on: Callable[[], None]) -> None:
        """Do this in what is left of the turn, or in one of the next."""

    def in_pieces(self, pieces: Iterator[int]) -> None:
        """The same of what comes in pieces, each of which says how much work it was."""

    def put_off(self, go_on: Callable[[], None]) -> None:
        """The same, for what nobody waits for: a turn does a `LITTLE` of all such."""

    def works_out(self, writes: Sequence[r.Write], go_on: Callable[[], None], *, again: bool = False) -> bool:
        """Whether some of these writes are so large that they are worked out first, in pieces: then `go_on`. `again`: also
        those that are here, which are undone first."""


BATCH_BYTES_MAX = WORK_MAX // 2 * BYTES_OF_WORK
"""However large batches may be, one is made in one turn, and taken in one."""


def batch_bytes(settings: Settings) -> int:
    """How much of a transfer, or of what is prepared, is said at once."""
    return min(settings.supply_batch_bytes, BATCH_BYTES_MAX)


def may_act(node: Fence, version: Version) -> bool:
    """The fence, said once: whether this node may act on what was said under `version`.

    Not if its own map is another one, light steps aside; not after it has reported to an exchange, which rests on what it
    said then; and not while the map lists another life of it. What was said is said again under the map that comes of it.
    """
    return version == node.fence and not node.frozen and node.serving


def leads(node: Fence, number: int) -> LocalPartition | None:
    """A partition, if this node is its primary and has done what a new one owes; None, too, if there is no such one."""
    local = node.local[number] if number < len(node.local) else None
    return local if local is not None and local.active else None


def _nothing_to_do() -> None:
    pass


class Shipped(Protocol):
    """Something a primary decided: records, logged here, that count once every in-sync copy has them."""

    @property
    def partition(self) -> int:
        """Which all of it concerns."""

    @property
    def epoch(self) -> int:
        """In which it was decided."""

    @property
    def records(self) -> Sequence[r.Record]:
        """What is shipped."""

    def counted(self) -> None:
        """It counts: called once, unless `abandoned` is."""

    def abandoned(self) -> None:
        """The topology changed, and this node is not the primary any more: whether it counts is for the new one."""


class Operation:
    """Something shipped, whose owner is told what became of it by functions."""

    __slots__ = ("abandoned", "counted", "epoch", "partition", "records")

    def __init__(
        self,
        local: LocalPartition,
        records: list[r.Record],
        *,
        counted: Callable[[], None] = _nothing_to_do,
        abandoned: Callable[[], None] = _nothing_to_do,
    ) -> None:
        self.partition = local.number
        self.epoch = local.epoch
        self.records = records
        self.counted = counted
        self.abandoned = abandoned


class Shipping(Protocol):
    """How what a primary decided reaches the other copies."""

    def ship(self, operation: Shipped, local: LocalPartition) -> None:
        """Send an operation, already logged here, to the copies of its partition."""

    def ship_by_size(self, operation: Shipped, local: LocalPartition) -> None:
        """The same; one that writes very many keys goes by itself, in a turn of its own."""

    def lag(self, node: NodeId, partitions: Container[int]) -> None:
        """A MOVING copy begins to take these partitions' writes: what is under way goes to it too."""

    def is_behind(self, node: NodeId) -> bool:
        """Whether a MOVING copy is too far behind to be waited for."""

    def wait_for(self, node: NodeId, partition: int) -> None:
        """From now on wait for this MOVING copy too."""

    def outstanding(self, node: NodeId, partition: int) -> bool:
        """Whether a MOVING copy has yet to answer something about the partition."""
