"""What nodes say about copies: what each has, what it lacks, and what brings it up to date.

They are part of the engine's closed union of messages, and obey what it says of all of them: each carries the version of
the map that it was said in, may be lost, doubled or reordered, and is answered alike however often it comes.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from rebalance.lives import Life
from wal import records as r
from wal.ids import Ballot, Digest, Fragment, Namespace, NodeId, Number, TxId, Version

# What a node has; `rebalance.telling` says it.


class CopyReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one node's copy of one fragment has: a line of its single map.

    `loading`: it is not whole. `doubted`: its operator wants it taken anew, so another one goes before it.
    """

    namespace: Namespace
    partition: Number
    lwm: Number
    highest: Number
    stable: Number
    digest: Digest
    epoch: Number = 0
    loading: bool = False
    doubted: bool = False


class SingleMap(msgspec.Struct, frozen=True, array_like=True, tag="single-map", gc=False):
    """All that one node has. From now on it takes no replication and no commits of version `after`.

    `claims` is the most that other lives were heard to claim: a disk that begins a life below that was set back.
    `vouched` are MOVING copies, of partitions it is primary of, that have everything it has. `sums`: what each of its
    copies adds up to (`rebalance.sums`), for who asked for that; then `copies` is empty, and asked for where they differ.
    """

    after: Version
    ballot: Ballot
    life: Life
    claims: list[r.Claim]
    copies: list[CopyReport]
    vouched: list[tuple[Number, NodeId]]
    sums: list[tuple[Number, Digest]] | None = None


class AskCopies(msgspec.Struct, frozen=True, array_like=True, tag="ask-copies", gc=False):
    """What you had of these partitions when you reported, fragment by fragment; what I ask has a number."""

    after: Version
    ballot: Ballot
    number: Number
    partitions: list[Number]


class Copies(msgspec.Struct, frozen=True, array_like=True, tag="copies", gc=False):
    """That."""

    after: Version
    ballot: Ballot
    number: Number
    life: Life
    copies: list[CopyReport]


# Promotion.


class TailReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a copy has of one fragment: its low watermark, what lies beyond a gap, and its epoch table."""

    namespace: Namespace
    lwm: Number
    ranges: list[tuple[Number, Number]]
    epochs: list[tuple[Number, Number]]


class CopyTail(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a copy has of one partition; in an answer, with the writes and prepares that the asker lacks.

    Much comes in parts: of writes and prepares, one after the other, so many were `told` before these, or are here where
    this asks on; and so many are `left`.
    """

    partition: Number
    epoch: Number
    fragments: list[TailReport]
    prepared: list[TxId]
    writes: list[r.Write]
    prepares: list[r.Prepare]
    told: Number = 0
    left: Number = 0


class AskTail(msgspec.Struct, frozen=True, array_like=True, tag="ask-tail", gc=False):
    """A new primary to an in-sync survivor: what do you have, of these partitions, that I lack? `in_parts`: I ask on."""

    version: Version
    copies: list[CopyTail]
    in_parts: bool = False


class Tail(msgspec.Struct, frozen=True, array_like=True, tag="tail", gc=False):
    """The answer."""

    version: Version
    copies: list[CopyTail]


# Catching up.


class Have(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a copy has of one fragment: a MOVING one says it, for its supplier to compare it with its own.

    `stable`: how far down it can undo. `loading`: nothing that can be built on. `no_history`: that was tried in vain.
    `suspects` are keys to be sent as they are. `beyond` is of which epoch it is what was applied beyond a gap, as (start,
    delta, epoch): the table tells only of what the low watermark has passed. `kept`: it is loading, and has rows. `leaves`
    are what its rows add up to (`rebalance.leaves`), where its supplier has asked.
    """

    namespace: Namespace
    partition: Number
    lwm: Number
    highest: Number
    ranges: list[tuple[Number, Number]]
    epochs: list[tuple[Number, Number]]
    digests: list[tuple[Number, Digest]]  # (counter, digest) it can vouch for, newest last
    stable: Number = 0
    loading: bool = False
    no_history: bool = False
    suspects: list[bytes] = []
    beyond: list[tuple[Number, Number, Number]] = []
    kept: bool = False
    leaves: bytes = b""

    @property
    def name(self) -> Fragment:
        """The fragment."""
        return (self.namespace, self.partition)


class Demand(msgspec.Struct, frozen=True, array_like=True, tag="demand", gc=False):
    """A node to the primary of partitions it is MOVING in: this is what I have of them; bring me up to date.

    A session that demands much does so in several `parts`, numbered from 0, which may arrive in any order.
    """

    version: Version
    session: Number
    partitions: list[Number]
    haves: list[Have]
    credit: Number
    part: Number = 0
    parts: Number = 1


class Credit(msgspec.Struct, frozen=True, array_like=True, tag="more", gc=False):
    """Everything up to batch `batch` of the session was taken here; send `credit` more. It may be on no disk yet.

    `again`: nothing came for a while. What was sent beyond is to be sent once more, and `credit` is all that there is.
    """

    version: Version
    session: Number
    batch: Number
    credit: Number
    again: bool = False


class Transfer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How one fragment catches up, and why.

    `kind` is nothing, historical, differential or full. `cut`: undo everything above it first (-1: nothing to undo). One of
    rows is whole up to `up_to`, with this digest and these epochs.
    """

    namespace: Namespace
    partition: Number
    kind: str
    reason: str
    cut: int
    missing: Number
    up_to: Number
    digest: Digest
    epochs: list[tuple[Number, Number]]


class Differing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Under which leaves of a fragment the two copies have other rows, a bit for each leaf that was told."""

    namespace: Namespace
    partition: Number
    bits: bytes


BYTES_A_WORK = 1 << 10
"""So many bytes of rows are as much work as a row. What a turn makes of large ones leaves before the next is made, and what
a turn takes of them is answered before the next is taken: else one side would rest while the other works."""
WRITTEN_BYTES_A_WORK = 4 << 10
"""And so many of writes that come as history."""
WRITTEN_KEYS_A_WORK = 4
"""And so many keys of them, beside the first of each."""
ROWS_A_WORK = 4
"""Rows of a full transfer are taken so many times as fast as anything else: they are put, and nothing is looked up."""


ROW_BYTES = 32
"""What a row weighs in a batch beside its key and value."""


class Supply(msgspec.Struct, frozen=True, array_like=True, tag="supply", gc=False):
    """One batch of a session.

    The first brings the epochs and the transfers; `later` partitions are for another session, because enough go in full in
    this one. `done` fragments are complete, `missed` ones need another kind. `survey`: what do the rows of these fragments
    add up to? Their partitions are among the later ones. What is `differing` comes in the next batches, and so does what is
    `open`: prepared, and too much for one. Batch 0 brings nothing: it says that the supplier is there, and waits for its
    limit. `together`: the copies that are whole after it may be said to be so in one message (`AllSettled`).
    """

    version: Version
    session: Number
    batch: Number
    epochs: list[tuple[Number, Number]] = []  # (partition, epoch)
    later: list[Number] = []
    transfers: list[Transfer] = []
    prepares: list[r.Prepare] = []
    writes: list[r.Write] = []
    rows: list[r.Preload] = []
    results: list[r.Results] = []
    done: list[tuple[Namespace, Number]] = []
    missed: list[tuple[Namespace, Number]] = []
    last: bool = False
    survey: list[tuple[Namespace, Number]] = []
    differing: list[Differing] = []
    open: list[tuple[Number, TxId]] = []
    together: bool = False

    @property
    def prepared(self) -> list[tuple[int, TxId]]:
        """What is prepared in the partitions of this batch, which brings it or says that it comes."""
        return [*((prepare.partition, prepare.tx) for prepare in self.prepares), *self.open]

    @property
    def work(self) -> int:
        """What it is to take it."""
        rows = sum(len(rows.keys) for rows in self.rows)
        size = sum([len(value) for rows in self.rows for value in rows.values if value is not None])
        answers = sum(len(some.txs) for some in self.results)
        prepares = sum(work_of_writes(prepare.writes) for prepare in self.prepares)
        beside = len(self.epochs) + 2 * len(self.transfers) + work_of_writes(self.writes) + prepares + answers
        return beside + rows // ROWS_A_WORK + size // BYTES_A_WORK

    @property
    def size(self) -> int:
        """What it weighs on its way, about, in bytes."""
        writes = [*self.writes, *(w for prepare in self.prepares for w in prepare.writes)]
        pairs = [(w.keys, w.values) for w in writes] + [(rows.keys, rows.values) for rows in self.rows]
        rows = sum(ROW_BYTES * len(keys) + sum(map(len, keys)) for keys, _ in pairs)
        values = sum(len(value) for _, some in pairs for value in some if value is not None)
        answers = sum(len(some.txs) for some in self.results)
        return rows + values + ROW_BYTES * (1 + len(writes) + answers + len(self.transfers))


def work_of_writes(writes: list[r.Write]) -> int:
    """What it is to say these, which come as history, or to take them."""
    size = sum(len(value) for write in writes for value in write.values if value is not None)
    keys = sum([len(write.keys) for write in writes])
    return len(writes) + max(0, keys - len(writes)) // WRITTEN_KEYS_A_WORK + size // WRITTEN_BYTES_A_WORK


class Contents(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a copy of one fragment contains, with what is applied, as a digest of its rows; `history` is that at `lwm`."""

    namespace: Namespace
    lwm: Number
    ranges: list[tuple[Number, Number]]
    digest: Digest
    history: Digest = 0


class Settled(msgspec.Struct, frozen=True, array_like=True, tag="settled", gc=False):
    """A MOVING copy to its primary: no gap is left; per fragment (namespace, lwm, digests it can vouch for).

    `readers` are the transactions that are prepared here without a write: no counter tells how they end. `round` is
    repeated by the answer. `contents` answers the `Compare` of round `compared`; None: that cannot be said. Of round 0 it
    was not asked for, and is what the copy contains as it says this, having been supplied in this `session`.
    """

    version: Version
    partition: Number
    fragments: list[tuple[Namespace, Number, list[tuple[Number, Digest]]]]
    readers: list[TxId]
    round: Number
    compared: Number = 0
    contents: list[Contents] | None = None
    session: Number = 0


class AllSettled(msgspec.Struct, frozen=True, array_like=True, tag="all-settled", gc=False):
    """The same of many copies of one node."""

    version: Version
    copies: list[Settled]


class Settle(msgspec.Struct, frozen=True, array_like=True, tag="settle", gc=False):
    """The primary's answer: say it again when you have these counters; take the `wrong` fragments in full.

    Of the transactions that only read here, `ended` are over and `prepares` are what the copy lacks.
    """

    version: Version
    partition: Number
    marks: list[tuple[Namespace, Number]]
    wrong: list[Namespace]
    ended: list[TxId]
    prepares: list[r.Prepare]
    round: Number


# Anti-entropy.


class AskProofs(msgspec.Struct, frozen=True, array_like=True, tag="ask-proofs", gc=False):
    """A primary to a copy in sync: what do you contain of these partitions? And `read` the rows of these fragments.

    An asynchronous copy says the latter to its primary, and asks nothing.
    """

    version: Version
    round: Number
    partitions: list[Number]
    read: list[Fragment]


class CopyProof(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a copy contains of a partition; None: that cannot be said now.

    Of its namespaces, those whose rows were read and are what was written (`proven`, once it was asked), or are not.
    """

    partition: Number
    contents: list[Contents] | None
    proven: list[Namespace]
    disproved: list[Namespace]


class Proofs(msgspec.Struct, frozen=True, array_like=True, tag="proofs", gc=False):
    """The answer. Of round 0 it is none: a primary shows its asynchronous copies what it contains."""

    version: Version
    round: Number
    copies: list[CopyProof]


class Heal(msgspec.Struct, frozen=True, array_like=True, tag="heal", gc=False):
    """A primary to a copy in sync: your copy of this fragment is wrong, and mine is not; take it anew.

    `kept`: its rows are what it wrote, and most of them are right.
    """

    version: Version
    name: Fragment
    kept: bool
    reason: str


# Asynchronous copies.


class Stands(msgspec.Struct, frozen=True, array_like=True, tag="stands", gc=False):
    """A primary to an asynchronous copy: so far I am in these fragments, (namespace, partition, LWM, digest there)."""

    version: Version
    fragments: list[tuple[Namespace, Number, Number, Digest]]


ToPromotion: TypeAlias = AskTail | Tail
ToSupplier: TypeAlias = Demand | Credit | Settled | AllSettled
ToDemander: TypeAlias = Supply | Settle
ToAntiEntropy: TypeAlias = AskProofs | Proofs | Heal | Stands
CopyMessage: TypeAlias = ToPromotion | ToSupplier | ToDemander | ToAntiEntropy
"""All that the rules of this package say to each other."""
