"""What a node writes to its log: a closed union of small values, one object per batch and never per entry.

The log is the node: its state is the last checkpoint folded with every record since. A record therefore says what *is*
from now on (results, never operations), and replaying it twice changes nothing. Records are MessagePack arrays in which
the first element is the tag; fields are only ever added at the end, with a default.

The unit inside them is the `Write`: one contiguous range of one fragment's counters. A transaction reserves one range
per fragment, so a batch of a thousand keys is one object with two lists. A range is never split or merged after it was
reserved: whoever ships, supplies or re-issues it ships all of it.
"""

from collections.abc import Iterator
from typing import TypeAlias, assert_never, get_args

import msgspec

from wal.ids import CLIENTS, DECISIONS, MAPS, Ballot, Fragment, Namespace, NodeId, Number, TxId, Version


class Write(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The counters `start+1 .. start+delta` of one fragment: updates in order, or (no keys) a closed gap.

    A value of None is a delete. `stable` is the primary's LWM when the range was reserved: everything at or below it is
    durable on every in-sync copy. `origin` is the epoch that first issued it, when a later epoch re-issued it. `answer` is
    what its client was told of it, beside that it was done: whoever asks again is told the same.
    """

    namespace: Namespace
    partition: Number
    epoch: Number
    start: Number
    keys: list[bytes]
    values: list[bytes | None]
    stable: Number = 0
    tx: TxId = b""
    closed: Number = 0
    origin: int = 0
    answer: bytes | None = None

    @property
    def delta(self) -> int:
        """How many counters it takes."""
        return self.closed or len(self.keys)

    @property
    def end(self) -> int:
        """Its highest counter."""
        return self.start + (self.closed or len(self.keys))

    @property
    def fragment(self) -> Fragment:
        """The fragment it belongs to."""
        return (self.namespace, self.partition)

    @property
    def issued(self) -> int:
        """The epoch that first issued it; part of the digest, so that a re-issue leaves the digest alone."""
        return self.origin or self.epoch


Range: TypeAlias = tuple[Namespace, Number, Number]
"""(namespace, start, delta): counters of one fragment of the partition that the record names."""


class Update(msgspec.Struct, frozen=True, array_like=True, tag="update", gc=False):
    """Prepare and commit in one: each write stands by itself, atomic within its partition."""

    writes: list[Write]


class Prepare(msgspec.Struct, frozen=True, array_like=True, tag="prepare", gc=False):
    """One participant's vote: these counters, entries and locks are held until the outcome is known.

    `locks` are keys that were read and not written. `participants` are all partitions of the transaction, `decision`
    the one that holds its decision record. `origin` is the epoch it was voted in, when a later primary re-issued it.
    `held`: its client asked for the votes only. Nothing but a decision that follows from its word may commit it.
    """

    tx: TxId
    partition: Number
    epoch: Number
    writes: list[Write]
    locks: list[tuple[Namespace, bytes]]
    participants: list[Number]
    decision: Number
    origin: int = 0
    held: bool = False

    @property
    def issued(self) -> int:
        """The epoch in which the vote was given."""
        return self.origin or self.epoch


class Outcome(msgspec.Struct, frozen=True, array_like=True, tag="outcome", gc=False):
    """A prepared transaction's outcome in one partition: its ranges become updates, or are closed by the rollback."""

    tx: TxId
    partition: Number
    epoch: Number
    commit: bool
    ranges: list[Range]


class NoOp(msgspec.Struct, frozen=True, array_like=True, tag="noop", gc=False):
    """Gaps that a new primary closed: nobody was promised anything about these counters."""

    partition: Number
    epoch: Number
    gaps: list[Range]


class EpochStart(msgspec.Struct, frozen=True, array_like=True, tag="epoch", gc=False):
    """A new epoch of one partition: from counter `first` on, each fragment's history is this epoch's.

    `ended` are transactions that only read here and are in doubt on this copy alone: it was away when they ended.
    """

    partition: Number
    epoch: Number
    firsts: list[tuple[Namespace, int]]
    ended: list[TxId] = msgspec.field(default_factory=list)


class History(msgspec.Struct, frozen=True, array_like=True, tag="history", gc=False):
    """Missed updates that came from another copy, with their own epochs and counters: they can be supplied again."""

    writes: list[Write]


class Preload(msgspec.Struct, frozen=True, array_like=True, tag="preload", gc=False):
    """Entries of a transfer of rows, or re-fetched after an undo, each with its own (epoch, counter).

    A counter of 0 says that the supplier has no such key, or will tell of it. With an epoch it says that the supplier has
    told of all, and not of this key, which was written live while the copy was loading: `FragmentReady` is about to come.
    """

    namespace: Namespace
    partition: Number
    epochs: list[int]
    counters: list[int]
    keys: list[bytes]
    values: list[bytes | None]


class Results(msgspec.Struct, frozen=True, array_like=True, tag="results", gc=False):
    """Outcomes by transaction id that came with a full transfer, so that a retry still gets its first answer; `answers` are
    what was told of some of them."""

    partition: Number
    txs: list[TxId]
    outcomes: list[int]
    floor: TxId = b""
    answers: list[tuple[TxId, bytes]] = msgspec.field(default_factory=list)


class Forget(msgspec.Struct, frozen=True, array_like=True, tag="forget", gc=False):
    """Answers that nobody will ask for again: of each session, those up to a sequence number."""

    partition: Number
    epoch: Number
    answered: list[tuple[bytes, int]]


class FragmentClear(msgspec.Struct, frozen=True, array_like=True, tag="clear", gc=False):
    """The copy of one fragment was emptied; unless `gone`, it counts for nothing until a `FragmentReady` follows.

    `kept`: so it is, but its rows are still there, and a transfer will say which of them stay.
    """

    namespace: Namespace
    partition: Number
    reason: str
    gone: bool = False
    kept: bool = False


class FragmentReady(msgspec.Struct, frozen=True, array_like=True, tag="ready", gc=False):
    """A transfer of one fragment is complete: it is whole up to `lwm`, with the supplier's epochs and digest.

    After a full transfer (`full`) the log cannot serve history at or below `lwm`.
    """

    namespace: Namespace
    partition: Number
    lwm: int
    digest: int
    epochs: list[tuple[int, int]]
    full: bool


class Undo(msgspec.Struct, frozen=True, array_like=True, tag="undo", gc=False):
    """The copy's counters above `above` belong to a history that was not continued; `keys` are what they touched."""

    namespace: Namespace
    partition: Number
    above: int
    keys: list[bytes]


class Promised(msgspec.Struct, frozen=True, array_like=True, tag="promised", gc=False):
    """A promise of the exchange that follows version `after`: no lower ballot will be accepted."""

    after: Version
    ballot: Ballot


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag="accepted", gc=False):
    """A map accepted for the version that follows `after`; `topology` is encoded by the engine.

    Or only what it changes of the map `after`: `step`, encoded likewise, and the hash of the map that comes of it.
    """

    after: Version
    ballot: Ballot
    topology: bytes
    step: bytes = b""
    map_hash: int = 0


class Committed(msgspec.Struct, frozen=True, array_like=True, tag="committed", gc=False):
    """A committed map, encoded by the engine; or only what it changes of the one before it, as in `Accepted`."""

    version: Version
    topology: bytes
    step: bytes = b""
    map_hash: int = 0


class Boot(msgspec.Struct, frozen=True, array_like=True, tag="boot", gc=False):
    """The node started; `incarnation` is how often it has. `at` is where its log ended.

    `before` are earlier lives on this disk, as (incarnation, at): from the one that the map lists on.
    """

    incarnation: int
    at: int = 0
    before: list[tuple[int, int]] = msgspec.field(default_factory=list)


class Claim(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One life of a node, on one disk, claimed that its log is durable up to here."""

    node: NodeId
    allocation: str
    incarnation: int
    durable_lsn: int


class Claimed(msgspec.Struct, frozen=True, array_like=True, tag="claimed", gc=False):
    """All that the disks of others were heard to claim under the map `version`, in place of the last such record."""

    version: Version
    claims: list[Claim]


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, tag="checkpoint", gc=False):
    """The store holds everything up to `lsn`."""

    lsn: int


class Trimmed(msgspec.Struct, frozen=True, array_like=True, tag="trimmed", gc=False):
    """Segments below `first_lsn` are about to go: the log serves each fragment's history above this counter only."""

    first_lsn: int
    dropped: list[Range]  # (namespace, partition, highest counter that goes)


class Stable(msgspec.Struct, frozen=True, array_like=True, tag="stable", gc=False):
    """Everything up to these counters is on every in-sync copy: what the next write would have said, said without one."""

    partition: Number
    epoch: Number
    counters: list[tuple[Namespace, int]]


class Compare(msgspec.Struct, frozen=True, array_like=True, tag="compare", gc=False):
    """A primary would vouch for the copy on `node`: both sum up what they have where this stands among the writes.

    `round` tells the answers to one question from those to the last.
    """

    partition: Number
    epoch: Number
    node: NodeId
    round: int


class Origin(msgspec.Struct, frozen=True, array_like=True, tag="origin", gc=False):
    """Where a transaction comes from: said once, beside its first record, if it has a `label` or a client not yet named.

    `node` coordinates it. `client` and `address` are of its session (the id's first bytes), and so of all transactions of
    that; they are empty where they were said since the node's last checkpoint. `labels_all`: so is the label.
    """

    partition: Number
    epoch: Number
    tx: TxId
    node: NodeId
    label: str = ""
    client: str = ""
    address: str = ""
    labels_all: bool = False


Record: TypeAlias = (
    Update
    | Prepare
    | Outcome
    | NoOp
    | EpochStart
    | History
    | Preload
    | Results
    | Forget
    | FragmentClear
    | FragmentReady
    | Undo
    | Promised
    | Accepted
    | Committed
    | Boot
    | Claimed
    | Checkpoint
    | Trimmed
    | Stable
    | Compare
    | Origin
)

KINDS: tuple[type[Record], ...] = get_args(Record)


def kind_of(record: Record) -> str:
    """The record's name, as it stands in the log, in a dump and in a filter: `update`, `prepare`, ..."""
    return str(record.__struct_config__.tag)


def spans(record: Record) -> Iterator[tuple[Namespace, int, int, int]]:
    """The counters that a record speaks about: (namespace, partition, start, delta), for the history index."""
    match record:
        case Update(writes) | History(writes) | Prepare(_, _, _, writes):
            for write in writes:
                yield write.namespace, write.partition, write.start, write.delta
        case Outcome(_, partition, _, _, ranges) | NoOp(partition, _, ranges):
            for namespace, start, delta in ranges:
                yield namespace, partition, start, delta
        case (
            EpochStart()
            | Preload()
            | Results()
            | Forget()
            | FragmentClear()
            | FragmentReady()
            | Undo()
            | Promised()
            | Accepted()
            | Committed()
            | Boot()
            | Claimed()
            | Checkpoint()
            | Trimmed()
            | Stable()
            | Compare()
            | Origin()
        ):
            return
        case _:
            assert_never(record)


def mentions(record: Record) -> Iterator[Fragment]:
    """The fragments that a record speaks of without counters of theirs in `spans`: what else a story of them needs."""
    match record:
        case Preload(namespace, partition) | Undo(namespace, partition):
            yield namespace, partition
        case FragmentClear(namespace, partition) | FragmentReady(namespace, partition):
            yield namespace, partition
        case EpochStart(partition, _, firsts):
            for namespace, _ in firsts:
                yield namespace, partition
        case Origin(partition, label=label):
            yield (DECISIONS, partition) if label else CLIENTS
            if label and (record.address or record.labels_all):
                yield CLIENTS
        case Committed():
            yield MAPS
        case _:
            return
