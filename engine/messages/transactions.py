"""Two-phase commit, in messages."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from wal import records as r
from wal.ids import NO_ERA, Era, Namespace, NodeId, Number, TxId, Version


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one participant has to do with a transaction.

    `keys` and `values` are written, per namespace; `locks` were read under a lock; `reads` are (namespace, key, epoch,
    counter) that an optimistic transaction read and that must not have changed. `conditions`: (namespace, key, when, old,
    epoch, counter) that must hold when it votes. `ttls`: (namespace, key, ms) of what is written and expires.
    """

    partition: Number
    writes: list[tuple[Namespace, list[bytes], list[bytes | None]]]
    locks: list[tuple[Namespace, bytes]]
    reads: list[tuple[Namespace, bytes, Number, Number]]
    conditions: list[tuple[Namespace, bytes, str, bytes | None, Number, Number]] = []
    ttls: list[tuple[Namespace, bytes, int]] = []

    @property
    def written(self) -> list[tuple[Namespace, bytes]]:
        """The keys that it writes."""
        return [(namespace, key) for namespace, keys, _ in self.writes for key in keys]

    @property
    def seen(self) -> list[tuple[Namespace, bytes]]:
        """The keys that it rests on, whether it writes them or not."""
        keys = self.locks
        if self.reads:
            keys = keys + [(namespace, key) for namespace, key, _, _ in self.reads]
        return keys + [(one[0], one[1]) for one in self.conditions] if self.conditions else keys


class PrepareParts(msgspec.Struct, frozen=True, array_like=True, tag="prepare-parts", gc=False):
    """A transaction's coordinator to a participant: vote on these parts.

    `held`: the client has not asked to commit. `acked`: up to where its session had all answers. `origin` is to be logged
    beside the vote of the partition that decides.
    """

    version: Version
    tx: TxId
    owner: TxId
    optimistic: bool
    parts: list[Part]
    participants: list[Number]
    decision: Number
    held: bool = False
    acked: int = -1
    origin: r.Origin | None = None


class Vote(msgspec.Struct, frozen=True, array_like=True, tag="vote", gc=False):
    """A participant's answer for one partition: prepared durably in this epoch, or the reason why not.

    `era`: the transaction is of none before this one. `unmet`: a condition does not hold.
    """

    version: Version
    tx: TxId
    partition: Number
    epoch: Number
    yes: bool
    reason: str
    era: Era = NO_ERA
    unmet: bool = False


class Finish(msgspec.Struct, frozen=True, array_like=True, tag="finish", gc=False):
    """The outcome, to the primaries of the participants; repeated until each says that it is done.

    `era`: of the transaction, the greatest of its votes; `NO_ERA`: it is not known any more.
    """

    version: Version
    tx: TxId
    commit: bool
    partitions: list[Number]
    era: Era = NO_ERA


class Finished(msgspec.Struct, frozen=True, array_like=True, tag="finished", gc=False):
    """The outcome is durable on every in-sync copy of these partitions."""

    version: Version
    tx: TxId
    partitions: list[Number]


class Resolve(msgspec.Struct, frozen=True, array_like=True, tag="resolve", gc=False):
    """A participant in doubt to the primary of the decision partition: how did it end?

    `participants`: all of them, as the prepare names them, for a decision partition that has lost every trace of it.
    """

    version: Version
    tx: TxId
    decision: Number
    partition: Number
    participants: list[Number] = []


class Inquire(msgspec.Struct, frozen=True, array_like=True, tag="inquire", gc=False):
    """Recovery to a participant: is this transaction prepared in your partition?"""

    version: Version
    tx: TxId
    partition: Number
    decision: Number


class Inquired(msgspec.Struct, frozen=True, array_like=True, tag="inquired", gc=False):
    """The answer; a no is a promise, because prepares of older versions are rejected from now on.

    `committed`: it has ended here already, with a commit. `in_doubt`: a prepare is here that waits for the outcome.
    """

    version: Version
    tx: TxId
    partition: Number
    prepared: bool
    committed: bool = False
    in_doubt: bool = True


class Waits(msgspec.Struct, frozen=True, array_like=True, tag="waits", gc=False):
    """Who waits here for a lock, for a while already, and for whom: (waiter, holder).

    `about` each: the key, the holder's label, and for how many ms it has held something here (-1: it holds nothing).
    `shared`: whether to read it.
    """

    version: Version
    waits: list[tuple[TxId, TxId]]
    about: list[tuple[Namespace, bytes, str, int]] = []
    shared: list[bool] = []


class GiveWay(msgspec.Struct, frozen=True, array_like=True, tag="give-way", gc=False):
    """This transaction is not to wait any more: it stands in `circle`, each of which waits for the next one.

    `links`: the node where each waits, the key, and the label of the next one. `shared`: whether it waits to read.
    """

    version: Version
    victim: TxId
    circle: list[TxId]
    links: list[tuple[NodeId, Namespace, bytes, str]] = []
    shared: list[bool] = []


ToParticipant: TypeAlias = PrepareParts | Finish | Inquire
ToCoordinator: TypeAlias = Vote | Finished | Resolve | Inquired
ToDeadlocks: TypeAlias = Waits | GiveWay
