"""What clients ask of a node, and what it answers: a closed union of small values each.

Every request has an `id` that its answer repeats; ids are the client's. A write also has a transaction id: it may be sent
again, to whichever node is primary by then, and is executed once. `acked`: its session has all answers up to that number;
`version` is that of the map by which it was sent (`Version.number`); -1 and 0 say nothing. `engine.data.sessions` says why.
`within_ms`: after so long nobody waits for the answer, and what has not begun need not be done; 0: somebody always does.
`Remap` says that the node is not primary of what was asked; the client fetches the table and asks the right one.
"""

from __future__ import annotations

from typing import TypeAlias, get_args

import msgspec

from wal.ids import NO_ERA, Era, Namespace, NodeId, TxId, Version

# Requests.

KEYS_AT_ONCE = 2_000
"""So many keys one Get or Lock is answered for."""


SKIPPED = -1
"""Stands for the epoch of a key that somebody else has locked."""


class Scanned(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A range that a transaction has scanned, start <= key < end (None: no bound), and what it saw there.

    `marks`: (partition, epoch, counter), for each partition that was looked into: where its fragment stood before that.
    `known`: keys that are newer than their mark, and that the transaction has read or locked one by one.
    """

    namespace: Namespace
    start: bytes
    end: bytes | None
    marks: list[tuple[int, int, int]]
    known: list[bytes]


class GetTable(msgspec.Struct, frozen=True, array_like=True, tag="get-table", gc=False):
    """Where is everything?"""

    id: int


class Get(msgspec.Struct, frozen=True, array_like=True, tag="get", gc=False):
    """The values of keys that this node is primary of.

    `stale`: any OWNING copy will do, as it is; with `age_ms`, if it knows that it misses nothing that was acknowledged so
    long ago (-1: however old). Of more than `KEYS_AT_ONCE` keys the first are answered, the rest is to be asked for again.
    `cut`: as they were at this cut. `expiry`: not the values are asked for, but when they expire, as the wall clock of
    their primary counts: ms, in decimal; empty: never.
    """

    id: int
    namespace: Namespace
    keys: list[bytes]
    stale: bool = False
    age_ms: int = -1
    within_ms: int = 0
    cut: Era = NO_ERA
    expiry: bool = False


class Put(msgspec.Struct, frozen=True, array_like=True, tag="put", gc=False):
    """Set keys to values (None deletes), whatever they are now; atomic within each partition.

    `ttl_ms`: they expire so long after their primary took them (0: never).
    """

    id: int
    tx: TxId
    namespace: Namespace
    keys: list[bytes]
    values: list[bytes | None]
    acked: int = -1
    version: int = 0
    within_ms: int = 0
    ttl_ms: int = 0


class Swap(msgspec.Struct, frozen=True, array_like=True, tag="swap", gc=False):
    """Set one key if `when` holds of it: `absent`, `present`, `equals` (to `old`), `version` (its entry is that of `epoch`
    and `counter`) or `always`. `how` says what becomes of `new`: see `engine.protocol.operations`; an addition begins with
    `old` where nothing is. `ttl_ms` as with `Put`."""

    id: int
    tx: TxId
    namespace: Namespace
    key: bytes
    when: str
    old: bytes | None
    new: bytes | None
    acked: int = -1
    version: int = 0
    within_ms: int = 0
    how: str = "set"
    epoch: int = 0
    counter: int = 0
    ttl_ms: int = 0


class Lock(msgspec.Struct, frozen=True, array_like=True, tag="lock", gc=False):
    """Lock keys for a pessimistic transaction and read them; waits up to `timeout_ms` for other transactions.

    `shared`: to read them; else to write them. `held` of them it has locked to read, and that must be so still. `label` is
    what those are told who wait for it. `skip`: keys that would have to be waited for to write them are not locked, and are
    answered with epoch `SKIPPED`. Of more than `KEYS_AT_ONCE` keys the first are locked and answered, and the rest is to be
    asked for again. `holding`: it holds other keys, or is to have them with these, perhaps elsewhere.
    """

    id: int
    owner: TxId
    namespace: Namespace
    keys: list[bytes]
    timeout_ms: int
    within_ms: int = 0
    label: str = ""
    skip: bool = False
    shared: bool = False
    held: list[bytes] = []
    holding: bool = False


class KeepLocks(msgspec.Struct, frozen=True, array_like=True, tag="keep-locks", gc=False):
    """These transactions are alive: renew the leases of their locks."""

    id: int
    owners: list[TxId]


class Unlock(msgspec.Struct, frozen=True, array_like=True, tag="unlock", gc=False):
    """This transaction was given up: release its locks here."""

    id: int
    owner: TxId


class CommitTx(msgspec.Struct, frozen=True, array_like=True, tag="commit-tx", gc=False):
    """Commit a transaction; sent to the primary of its first written key, whose partition decides.

    `owner` holds its locks. `writes`: (namespace, keys, values). `locks`: keys read under a lock and not written.
    `reads`: (namespace, key, epoch, counter) that an optimistic transaction read. `prepare_only` stops before the
    decision; a later CommitTx of the same id, without it, goes on. `label` is what its client calls it, for the log;
    `labels_all`: it calls all so that it asks in this session.
    `conditions`: (namespace, key, when, old, epoch, counter) as of a Swap, of one that is optimistic; where one does not
    hold nothing is done, and it is `Done` and not `applied`.
    `ttls`: (namespace, key, ms) of what is written and expires so long after it is prepared.
    `staged`: so many pieces of it were staged before; it writes what is in them, too.
    """

    id: int
    tx: TxId
    owner: TxId
    optimistic: bool
    writes: list[tuple[Namespace, list[bytes], list[bytes | None]]]
    locks: list[tuple[Namespace, bytes]]
    reads: list[tuple[Namespace, bytes, int, int]]
    prepare_only: bool = False
    acked: int = -1
    version: int = 0
    within_ms: int = 0
    label: str = ""
    conditions: list[tuple[Namespace, bytes, str, bytes | None, int, int]] = []
    ttls: list[tuple[Namespace, bytes, int]] = []
    labels_all: bool = False
    staged: int = 0


class StageWrites(msgspec.Struct, frozen=True, array_like=True, tag="stage-writes", gc=False):
    """Keep a piece of what a transaction will write, for its CommitTx; asked of who will be sent that, for `partition`.

    One that is too large for a request is said in pieces, from `number` 1 on, each when the one before was answered; the
    first piece of all travels with the commit. `size`: how many bytes those that are staged have together. A node keeps
    them in memory, and for a while: who has not all of them says `UNSTAGED`, and they are said again. `writes`, `ttls` and
    `owner` as with CommitTx.
    """

    id: int
    tx: TxId
    owner: TxId
    partition: int
    number: int
    size: int
    writes: list[tuple[Namespace, list[bytes], list[bytes | None]]]
    ttls: list[tuple[Namespace, bytes, int]] = []
    within_ms: int = 0


class KeepSessions(msgspec.Struct, frozen=True, array_like=True, tag="keep-sessions", gc=False):
    """These sessions live, and have all answers up to a number: what they have not acknowledged may yet be asked for."""

    id: int
    sessions: list[tuple[bytes, int]]


class Check(msgspec.Struct, frozen=True, array_like=True, tag="check", gc=False):
    """Of a transaction that wrote nothing, or is prepared: are its locks still held, its optimistic reads still current?

    `going_on`: it does not end here, it wants to know whether what it has read so far was so at one moment. Whoever holds a
    lock on that may leave it as it is.
    `absent`: which of the reads found nothing, at which (epoch, counter) of the fragment; nothing was there since, either.
    `scanned`: ranges in which there is nothing above the marks, but for what is known. `tx`: what it is prepared as. One
    that wrote nothing ends here.
    """

    id: int
    owner: TxId
    locks: list[tuple[Namespace, bytes]]
    reads: list[tuple[Namespace, bytes, int, int]]
    within_ms: int = 0
    absent: list[tuple[Namespace, bytes, int, int]] = []
    scanned: list[Scanned] = []
    tx: TxId = b""
    going_on: bool = False


class GetStatus(msgspec.Struct, frozen=True, array_like=True, tag="get-status", gc=False):
    """How did this transaction, decided in this partition, end? If it did not end yet, it will be aborted.

    `age_ms`: how long ago its own client first sent it, if it is that one who asks, and had no answer; else -1.
    """

    id: int
    tx: TxId
    partition: int
    age_ms: int = -1


class Scan(msgspec.Struct, frozen=True, array_like=True, tag="scan", gc=False):
    """Rows of these partitions with start <= key < end (None: no bound), ascending, up to `limit` of them.

    `stale`, `age_ms` and `cut` as with Get. `marks`: say where each of the fragments stood before it was looked into, or at
    the cut, at the latest. `count`: not the rows, but how many there are in all of the partitions, without bounds.
    `reverse`: descending, the last rows of the range. `unlocked`: for who is to lock some of them now; rows that somebody
    has locked are passed over, also its own, and no outcome is waited for; of those who ask together each is told of rows
    that begin somewhere else.
    """

    id: int
    namespace: Namespace
    partitions: list[int]
    start: bytes
    end: bytes | None
    limit: int
    within_ms: int = 0
    stale: bool = False
    age_ms: int = -1
    marks: bool = False
    cut: Era = NO_ERA
    count: bool = False
    reverse: bool = False
    unlocked: bool = False


class TakeCut(msgspec.Struct, frozen=True, array_like=True, tag="take-cut", gc=False):
    """Take a cut of the whole database for this holder; asked of the primary of the first partition that is not LOST."""

    id: int
    holder: bytes
    within_ms: int = 0


LET_GO_MAX = 1_000
"""So many readers let go of their cuts in one request."""


class KeepCut(msgspec.Struct, frozen=True, array_like=True, tag="keep-cut", gc=False):
    """This holder still reads at a cut: renew the lease of it. `over`: it does not any more, nor do `others` at theirs."""

    id: int
    cut: Era
    holder: bytes
    over: bool = False
    others: list[tuple[Era, bytes]] = []


class Admin(msgspec.Struct, frozen=True, array_like=True, tag="admin", gc=False):
    """An operator's command with its arguments: `status`, `counters`, `init`, `baseline`, `stop`, `checkpoint`."""

    id: int
    command: str
    arguments: dict[str, list[str]]


Request: TypeAlias = (
    GetTable
    | Get
    | Put
    | Swap
    | Lock
    | KeepLocks
    | Unlock
    | CommitTx
    | StageWrites
    | KeepSessions
    | Check
    | GetStatus
    | Scan
    | TakeCut
    | KeepCut
    | Admin
)

# Answers.


class Table(msgspec.Struct, frozen=True, array_like=True, tag="table", gc=False):
    """The committed topology, encoded; empty while the cluster is not formed."""

    id: int
    version: Version
    topology: bytes


class Values(msgspec.Struct, frozen=True, array_like=True, tag="values", gc=False):
    """For each key asked: (epoch, counter, value). Answers Get and Lock. Value None: there was no such key in this epoch of
    its partition, when its fragment was at this counter.

    Values that do not fit into one answer are cut off at the end, never all of them: they are asked for again. `age_ms`:
    they have all that was acknowledged so long ago; 0: all that there is, -1: nobody knows.
    """

    id: int
    values: list[tuple[int, int, bytes | None]]
    version: int = 0
    age_ms: int = 0


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done", gc=False):
    """It is durable on every in-sync copy. `applied` is False when a condition did not hold, or what a Swap was to tell
    is too large to be told again; `found` is what stood there. Of one that was made `found` is the answer of its operation,
    whenever it is asked for. `version`: of the map that the node has; an idle client learns from it of a newer one."""

    id: int
    applied: bool = True
    found: bytes | None = None
    version: int = 0


class Rows(msgspec.Struct, frozen=True, array_like=True, tag="rows", gc=False):
    """Rows of a scan; `more`: the limit was reached and there may be others.

    `marks`, if they were asked for: the epoch of each partition, as they were asked for, and the LWM of its fragment.
    `count`, if it was asked for: how many rows there are; -1: it was not counted. `sure`: of one that passed over what is
    locked; no other row is there but such, nor is one in doubt. An older node never says so.
    """

    id: int
    keys: list[bytes]
    values: list[bytes]
    more: bool
    marks: list[tuple[int, int]] = []
    count: int = -1
    sure: bool = False


class Status(msgspec.Struct, frozen=True, array_like=True, tag="status", gc=False):
    """A transaction's end: `committed` or `aborted`."""

    id: int
    outcome: str


class Remap(msgspec.Struct, frozen=True, array_like=True, tag="remap", gc=False):
    """This node is not primary of what was asked, at this version. `begun`: it was, and the next one may finish it."""

    id: int
    version: Version
    begun: bool = False


class Link(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of a circle of transactions: who waits where for which key, to read it (`shared`) or to write it, and for whom."""

    waiter: TxId
    waiter_label: str
    holder: TxId
    holder_label: str
    node: NodeId
    namespace: Namespace
    key: bytes
    shared: bool


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed", gc=False):
    """Refused, and why. `code` names the error class of the client's API; `maybe_committed`: it may have happened.

    `ring`: the circle in which it gave way, each of whom waits for the next one; it is the first.
    """

    id: int
    code: str
    message: str
    retryable: bool = False
    maybe_committed: bool = False
    ring: list[Link] = []


class Report(msgspec.Struct, frozen=True, array_like=True, tag="report", gc=False):
    """An Admin's answer, as JSON."""

    id: int
    body: bytes


class Cut(msgspec.Struct, frozen=True, array_like=True, tag="cut", gc=False):
    """A cut was taken: the state that holds all that came before this era, and nothing else."""

    id: int
    cut: Era


Reply: TypeAlias = Table | Values | Done | Rows | Status | Remap | Failed | Report | Cut

REQUESTS: tuple[type[Request], ...] = get_args(Request)
REPLIES: tuple[type[Reply], ...] = get_args(Reply)


class Code:
    """The codes of `Failed`."""

    CONFLICT = "Conflict"
    LOCK_TIMEOUT = "LockTimeout"
    DEADLOCK = "Deadlock"
    NO_QUORUM = "NoQuorum"
    LOST = "PartitionLost"
    USAGE = "UsageError"
    FORGOTTEN = "Forgotten"
    ANSWERED = "AlreadyAnswered"
    BUSY = "Busy"
    NOT_FORMED = "NotFormed"
    UNKNOWN = "CommitUnknown"
    CORRUPTION = "CorruptionError"
    SNAPSHOT_LOST = "SnapshotLost"
    SNAPSHOT_TOO_OLD = "SnapshotTooOld"
    UNSTAGED = "Unstaged"
    DISK_FULL = "DiskFull"


def request_kind(request: Request) -> str:
    """The request's name in a trace."""
    return str(request.__struct_config__.tag)
