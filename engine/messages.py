"""What nodes say to each other: a closed union of small values.

A message is the thing said (`Announce`, `Replicate`, `Demand`), not a call. Every message that touches data carries the
topology version it was sent in; a copy rejects anything from an older one, and asks for the map when it meets a newer
one. That is the fence which keeps a deposed primary harmless. All messages may be lost, doubled or reordered: whoever
needs an answer asks again, and whoever answers twice says the same.
"""

from __future__ import annotations

from typing import TypeAlias, get_args

import msgspec

from wal import records as r
from wal.ids import NO_VERSION, Ballot, Namespace, NodeId, TxId, Version


class CopyReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one node's copy of one fragment has: a line of its single map."""

    namespace: Namespace
    partition: int
    lwm: int
    highest: int
    stable: int
    digest: int
    epoch: int = 0


class Life(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One run of one node on one disk, and where its log ended when it began.

    `before` are the lives before it on this disk, oldest first, in the same words.
    """

    allocation: str
    incarnation: int
    boot_lsn: int
    before: list[tuple[int, int]] = msgspec.field(default_factory=list)


# Membership and the exchange.


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag="heartbeat", gc=False):
    """I live, I am at this version, and in this life the log on this disk is durable up to `durable_lsn`.

    `frozen`: I reported to an exchange that has not ended. `silent`: members that I do not hear, whoever else may.
    `voted_lsn`: all that I promised or accepted of the next version lies up to there. `cluster` and `map_hash` tell my map
    from another of the same version.

    `sync_ms`: the longest sync of my log since my last one. While a turn or a sync takes longer than the time between two
    of them, the last one is repeated: `busy_ms` says for how long this has been so, and `sync_ms` how much of it is the
    sync that is under way. `stalled`: copies that have not answered me for longer than it takes to be suspected.
    """

    version: Version
    life: Life
    durable_lsn: int
    frozen: bool
    silent: list[NodeId]
    voted_lsn: int = 0
    cluster: str = ""
    map_hash: int = 0
    sync_ms: int = 0
    busy_ms: int = 0
    stalled: list[NodeId] = msgspec.field(default_factory=list)


class Join(msgspec.Struct, frozen=True, array_like=True, tag="join", gc=False):
    """Let me in; repeated until a map lists this incarnation. `silent`: members of the map I know that I do not hear."""

    node: NodeId
    allocation: str
    incarnation: int
    address: str
    domain: str
    version: Version
    cluster: str
    silent: list[NodeId]


class Leave(msgspec.Struct, frozen=True, array_like=True, tag="leave", gc=False):
    """I am stopping on purpose, in this life: take me out, after handing my partitions over."""

    node: NodeId
    incarnation: int = 0


class SetBaseline(msgspec.Struct, frozen=True, array_like=True, tag="set-baseline", gc=False):
    """An operator's order, passed on to the coordinator: these nodes are meant to hold data.

    It is given on the baseline that version `baselined` brought, and void for any other.
    """

    nodes: list[NodeId]
    baselined: Version = NO_VERSION


class ResetLost(msgspec.Struct, frozen=True, array_like=True, tag="reset-lost", gc=False):
    """An operator's order, passed on to the coordinator: lost partitions begin again with the best copies that are there.

    It is given on one version of the placement of each partition, and void for any other.
    """

    partitions: list[tuple[int, int]]  # (partition, version of its placement)


class Halt(msgspec.Struct, frozen=True, array_like=True, tag="halt", gc=False):
    """The operator stops the whole cluster, as it is at this version: stop, and hand nothing over."""

    version: Version


class Survey(msgspec.Struct, frozen=True, array_like=True, tag="survey", gc=False):
    """What is left on your disk? Asked when the majority is gone for good."""

    number: int


class Surveyed(msgspec.Struct, frozen=True, array_like=True, tag="surveyed", gc=False):
    """All that one node has: its committed map, one that it accepted after it, and its copies."""

    number: int
    life: Life
    address: str
    domain: str
    version: Version
    topology: bytes
    accepted_ballot: Ballot
    accepted: bytes
    claims: list[r.Claim]
    copies: list[CopyReport]


class Announce(msgspec.Struct, frozen=True, array_like=True, tag="announce", gc=False):
    """The version after `after` is being decided under this ballot; `handover` partitions change their primary."""

    after: Version
    ballot: Ballot
    handover: list[int]


class Promise(msgspec.Struct, frozen=True, array_like=True, tag="promise", gc=False):
    """No lower ballot will be accepted; this is what was accepted before, if anything was. It is on disk at `voted_lsn`.

    `claims` is what I remember that others had promised: whoever began with less has forgotten it.
    """

    after: Version
    ballot: Ballot
    accepted_ballot: Ballot
    accepted: bytes
    life: Life
    voted_lsn: int = 0
    claims: list[r.Claim] = msgspec.field(default_factory=list)


class SingleMap(msgspec.Struct, frozen=True, array_like=True, tag="single-map", gc=False):
    """All that one node has. From now on it takes no replication and no commits of version `after`.

    `claims` is the most that other lives were heard to claim: a disk that begins a life below that was set back.
    `vouched` are MOVING copies, of partitions it is primary of, that have everything it has.
    """

    after: Version
    ballot: Ballot
    life: Life
    claims: list[r.Claim]
    copies: list[CopyReport]
    vouched: list[tuple[int, NodeId]]


class Propose(msgspec.Struct, frozen=True, array_like=True, tag="full-map", gc=False):
    """The map proposed for the version after `after`."""

    after: Version
    ballot: Ballot
    topology: bytes


class Accept(msgspec.Struct, frozen=True, array_like=True, tag="accept", gc=False):
    """The proposed map is on my disk at `voted_lsn`; the log is durable up to `durable_lsn` in this life."""

    after: Version
    ballot: Ballot
    life: Life
    durable_lsn: int
    voted_lsn: int = 0


class Refuse(msgspec.Struct, frozen=True, array_like=True, tag="refuse", gc=False):
    """A higher ballot was promised."""

    after: Version
    ballot: Ballot
    promised: Ballot


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit", gc=False):
    """A committed map."""

    version: Version
    topology: bytes


class AskMap(msgspec.Struct, frozen=True, array_like=True, tag="ask-map", gc=False):
    """You speak of a newer version than I have: send me its map."""

    version: Version


class CaughtUp(msgspec.Struct, frozen=True, array_like=True, tag="caught-up", gc=False):
    """A primary to the coordinator: these MOVING copies have everything I have."""

    version: Version
    copies: list[tuple[int, NodeId]]


# Replication.


class Replicate(msgspec.Struct, frozen=True, array_like=True, tag="replicate", gc=False):
    """Records for the copies of partitions whose primary the sender is; answered batch by batch."""

    version: Version
    sequence: int
    records: list[r.Record]


class Replicated(msgspec.Struct, frozen=True, array_like=True, tag="replicated", gc=False):
    """These batches are durable here, as the log is up to `durable_lsn`: a disk that begins with less was set back."""

    version: Version
    sequences: list[int]
    durable_lsn: int


class Confirm(msgspec.Struct, frozen=True, array_like=True, tag="confirm", gc=False):
    """Am I still your primary? Asked before a read is answered, for all reads of a turn at once."""

    version: Version
    sequence: int


class Confirmed(msgspec.Struct, frozen=True, array_like=True, tag="confirmed", gc=False):
    """At this moment I have not left this version."""

    version: Version
    sequence: int


class TailReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a copy has of one fragment: its low watermark, what lies beyond a gap, and its epoch table."""

    namespace: Namespace
    lwm: int
    ranges: list[tuple[int, int]]
    epochs: list[tuple[int, int]]


class CopyTail(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a copy has of one partition; in an answer, with the writes and prepares that the asker lacks."""

    partition: int
    epoch: int
    fragments: list[TailReport]
    prepared: list[TxId]
    writes: list[r.Write]
    prepares: list[r.Prepare]


class AskTail(msgspec.Struct, frozen=True, array_like=True, tag="ask-tail", gc=False):
    """A new primary to an in-sync survivor: what do you have, of these partitions, that I lack?"""

    version: Version
    copies: list[CopyTail]


class Tail(msgspec.Struct, frozen=True, array_like=True, tag="tail", gc=False):
    """The answer."""

    version: Version
    copies: list[CopyTail]


# Two-phase commit.


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One participant's share of a transaction.

    `keys` and `values` are written, per namespace; `locks` were read under a lock; `reads` are (namespace, key, epoch,
    counter) that an optimistic transaction read and that must not have changed.
    """

    partition: int
    writes: list[tuple[Namespace, list[bytes], list[bytes | None]]]
    locks: list[tuple[Namespace, bytes]]
    reads: list[tuple[Namespace, bytes, int, int]]


class PrepareParts(msgspec.Struct, frozen=True, array_like=True, tag="prepare-parts", gc=False):
    """A transaction's coordinator to a participant: vote on these parts.

    `held`: the client has not asked to commit. `acked`: up to where its session had all answers.
    """

    version: Version
    tx: TxId
    owner: TxId
    optimistic: bool
    parts: list[Part]
    participants: list[int]
    decision: int
    held: bool = False
    acked: int = -1


class Vote(msgspec.Struct, frozen=True, array_like=True, tag="vote", gc=False):
    """A participant's answer for one partition: prepared durably in this epoch, or the reason why not."""

    version: Version
    tx: TxId
    partition: int
    epoch: int
    yes: bool
    reason: str


class Finish(msgspec.Struct, frozen=True, array_like=True, tag="finish", gc=False):
    """The outcome, to the primaries of the participants; repeated until each says that it is done."""

    version: Version
    tx: TxId
    commit: bool
    partitions: list[int]


class Finished(msgspec.Struct, frozen=True, array_like=True, tag="finished", gc=False):
    """The outcome is durable on every in-sync copy of these partitions."""

    version: Version
    tx: TxId
    partitions: list[int]


class Resolve(msgspec.Struct, frozen=True, array_like=True, tag="resolve", gc=False):
    """A participant in doubt to the primary of the decision partition: how did it end?"""

    version: Version
    tx: TxId
    decision: int
    partition: int


class Inquire(msgspec.Struct, frozen=True, array_like=True, tag="inquire", gc=False):
    """Recovery to a participant: is this transaction prepared in your partition?"""

    version: Version
    tx: TxId
    partition: int
    decision: int


class Inquired(msgspec.Struct, frozen=True, array_like=True, tag="inquired", gc=False):
    """The answer; a no is a promise, because prepares of older versions are rejected from now on."""

    version: Version
    tx: TxId
    partition: int
    prepared: bool


# Catching up.


class Have(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a MOVING copy has of one fragment, for its supplier to choose the way. `loading`: nothing it can build on."""

    namespace: Namespace
    partition: int
    lwm: int
    highest: int
    ranges: list[tuple[int, int]]
    epochs: list[tuple[int, int]]
    digests: list[tuple[int, int]]  # (counter, digest) it can vouch for, newest last
    base: int
    loading: bool
    no_history: bool
    suspects: list[bytes]


class Demand(msgspec.Struct, frozen=True, array_like=True, tag="demand", gc=False):
    """A node to the primary of partitions it is MOVING in: this is what I have of them; bring me up to date.

    A session that demands much does so in several `parts`, numbered from 0, which may arrive in any order.
    """

    version: Version
    session: int
    partitions: list[int]
    haves: list[Have]
    credit: int
    part: int = 0
    parts: int = 1


class More(msgspec.Struct, frozen=True, array_like=True, tag="more", gc=False):
    """Everything up to batch `batch` of the session is durable here; send `credit` more.

    `again`: nothing came for a while. What was sent beyond is to be sent once more, and `credit` is all that there is.
    """

    version: Version
    session: int
    batch: int
    credit: int
    again: bool = False


class Way(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How one fragment catches up, and why.

    `kind` is nothing, historical or full. `cut`: undo everything above it first (-1: nothing to undo). A full transfer
    is whole up to `up_to`, with this digest and these epochs.
    """

    namespace: Namespace
    partition: int
    kind: str
    reason: str
    cut: int
    missing: int
    up_to: int
    digest: int
    epochs: list[tuple[int, int]]


class Supply(msgspec.Struct, frozen=True, array_like=True, tag="supply", gc=False):
    """One batch of a session.

    The first brings the epochs and the ways; `later` partitions are for another session, because enough go in full in
    this one. `done` fragments are complete, `missed` ones need another way.
    """

    version: Version
    session: int
    batch: int
    epochs: list[tuple[int, int]]  # (partition, epoch)
    later: list[int]
    ways: list[Way]
    prepares: list[r.Prepare]
    writes: list[r.Write]
    rows: list[r.Preload]
    results: list[r.Results]
    done: list[tuple[Namespace, int]]
    missed: list[tuple[Namespace, int]]
    last: bool


class Contents(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a copy of one fragment contains, with what is applied, as a digest of its rows."""

    namespace: Namespace
    lwm: int
    ranges: list[tuple[int, int]]
    digest: int


class Settled(msgspec.Struct, frozen=True, array_like=True, tag="settled", gc=False):
    """A MOVING copy to its primary: no gap is left; per fragment (namespace, lwm, digests it can vouch for).

    `readers` are the transactions that are prepared here without a write: no counter tells how they end. `round` is
    repeated by the answer. `contents` answers the `Compare` of round `compared`; None: that cannot be said.
    """

    version: Version
    partition: int
    fragments: list[tuple[Namespace, int, list[tuple[int, int]]]]
    readers: list[TxId]
    round: int
    compared: int = 0
    contents: list[Contents] | None = None


class Settle(msgspec.Struct, frozen=True, array_like=True, tag="settle", gc=False):
    """The primary's answer: say it again when you have these counters; take the `wrong` fragments in full.

    Of the transactions that only read here, `ended` are over and `prepares` are what the copy lacks.
    """

    version: Version
    partition: int
    marks: list[tuple[Namespace, int]]
    wrong: list[Namespace]
    ended: list[TxId]
    prepares: list[r.Prepare]
    round: int


Message: TypeAlias = (
    Heartbeat
    | Join
    | Leave
    | SetBaseline
    | ResetLost
    | Halt
    | Survey
    | Surveyed
    | Announce
    | Promise
    | SingleMap
    | Propose
    | Accept
    | Refuse
    | Commit
    | AskMap
    | CaughtUp
    | Replicate
    | Replicated
    | Confirm
    | Confirmed
    | AskTail
    | Tail
    | PrepareParts
    | Vote
    | Finish
    | Finished
    | Resolve
    | Inquire
    | Inquired
    | Demand
    | More
    | Supply
    | Settled
    | Settle
)

KINDS: tuple[type[Message], ...] = get_args(Message)


def kind_of(message: Message) -> str:
    """The message's name, as it stands in a trace, a scenario and a log line: `announce`, `replicate`, ..."""
    return str(message.__struct_config__.tag)
