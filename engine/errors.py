"""What can go wrong, as an application sees it.

Every error says what was expected, what was found and what to do next. Three facts are for programs: `retryable` (the
same thing may succeed later), `maybe_committed` (it may have happened: do not do it again without asking), and `tx_id`
(whom to ask about, with `db.transaction_status`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Error(Exception):
    """Anything that the engine refuses or cannot do; the message says what was expected, what was found, and what to do.

    `retryable`: nothing of it happened, and the same may succeed later. `maybe_committed`: it may have happened; do not do
    it again without asking. `tx_id`: whom `db.transaction_status` is to be asked about, or None.
    """

    retryable = False
    maybe_committed = False

    def __init__(self, message: str, *, tx_id: str | None = None) -> None:
        super().__init__(message)
        self.tx_id = tx_id


class Conflict(Error):
    """Another transaction came first, or this one's locks were lost; nothing of it happened. Run it again."""

    retryable = True


class LockTimeout(Error):
    """A key stayed locked by another transaction for too long. It was not locked for this one."""

    retryable = True


class Waiting(NamedTuple):
    """Of a circle of transactions: one of them, and for which key it waited, where, to read (`shared`) or to write it
    (`exclusive`). The next one in the circle stood in its way."""

    transaction: str
    label: str
    node: str
    namespace: str
    key: bytes
    mode: Literal["shared", "exclusive"]


class Deadlock(LockTimeout):
    """Transactions waited for each other in a circle, and this one gave way. It was not locked for it. What it has locked
    before, the others get when it ends: let it roll back, and run it again.

    `ring` is the circle: this transaction first, each waiting for the next one, and the last for the first.
    """

    ring: tuple[Waiting, ...] = ()


class TransactionTimeout(Error):
    """The transaction took longer than its timeout and was rolled back."""

    retryable = True


class AlreadyAnswered(Error):
    """The same request was answered before, and its client has said so; nothing was done now."""


class CommitUnknown(Error):
    """No answer came in time: it may have happened or not. Ask `db.transaction_status(error.tx_id)`."""

    maybe_committed = True


class NoQuorum(Error):
    """The nodes that can be reached are no majority of the cluster; they refuse, and resume when it is healed."""

    retryable = True


class Unavailable(Error):
    """No node that could serve this answered in time."""

    retryable = True


class PartitionLost(Error):
    """Every in-sync copy of a partition is away."""

    retryable = True


class SnapshotLost(Error):
    """A node on which a snapshot rested is not the primary any more, or did not hear of its reader for too long. Begin
    another one."""

    retryable = True


class SnapshotTooOld(SnapshotLost):
    """More was overwritten since a snapshot began than a node keeps for its readers. Begin another one."""


class ClusterReadOnly(Error):
    """The cluster's state does not allow writes."""


class UsageError(Error):
    """The call itself is wrong: the message says what was expected."""


class CorruptionError(Error):
    """Data on disk is not what was written."""


class DiskFull(Error):
    """There is no room for the log or the store."""


class ProtocolError(Error):
    """The other side said something that is not in the protocol."""
