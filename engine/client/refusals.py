"""What a refusal is to an application: one class of error for each code, and nothing else decides it."""

from __future__ import annotations

from typing import Literal

from engine import errors
from engine.client.flights import Errand
from engine.protocol.requests import Code, Failed, Link
from wal.probe import probe

ERRORS: dict[str, type[errors.Error]] = {
    Code.CONFLICT: errors.Conflict,
    Code.LOCK_TIMEOUT: errors.LockTimeout,
    Code.DEADLOCK: errors.Deadlock,
    Code.NO_QUORUM: errors.NoQuorum,
    Code.LOST: errors.PartitionLost,
    Code.USAGE: errors.UsageError,
    Code.FORGOTTEN: errors.CommitUnknown,
    Code.ANSWERED: errors.AlreadyAnswered,
    Code.BUSY: errors.Unavailable,
    Code.NOT_FORMED: errors.Unavailable,
    Code.UNKNOWN: errors.CommitUnknown,
    Code.CORRUPTION: errors.CorruptionError,
    Code.SNAPSHOT_LOST: errors.SnapshotLost,
    Code.SNAPSHOT_TOO_OLD: errors.SnapshotTooOld,
    Code.UNSTAGED: errors.Unavailable,
    Code.DISK_FULL: errors.DiskFull,
}


def error_of(code: str) -> type[errors.Error]:
    """The error that a code stands for; a code of a newer node that is not known here is an error of no kind."""
    return ERRORS.get(code, errors.Error)


def refused(errand: Errand, reply: Failed, *, awaited: bool) -> errors.Error | None:
    """As what a call ends that was refused; None: it is to be tried again. `awaited`: its answer never came."""
    call = errand.call
    match reply.code:
        case Code.BUSY | Code.NOT_FORMED | Code.NO_QUORUM | Code.UNSTAGED:
            return None
        case Code.FORGOTTEN:
            return errors.CommitUnknown(reply.message)
        case Code.ANSWERED if awaited:
            probe("client.refused_as_answered")  # and the answer did not come, or the nodes took its client for gone
            return errors.CommitUnknown(reply.message)
        case Code.ANSWERED:
            return errors.AlreadyAnswered(reply.message)
        case code if call.writes and call.asked and call.unanswered and code != Code.CONFLICT:
            # A conflict is recorded under the transaction's id. Any other refusal speaks of this attempt alone.
            probe("client.refused_after_no_answer")
            return errors.CommitUnknown(f"an earlier attempt was not answered; the last: {reply.message}")
        case _ if call.writes and call.begun:
            probe("client.refused_in_part")
            return errors.CommitUnknown(f"some partitions have it, one refused: {reply.message}")
        case _:
            error = error_of(reply.code)(reply.message)
            if isinstance(error, errors.Deadlock):
                error.ring = tuple(_waiting(link) for link in reply.ring)
            return error


def _waiting(link: Link) -> errors.Waiting:
    mode: Literal["shared", "exclusive"] = "shared" if link.shared else "exclusive"
    at = {"node": link.node, "namespace": link.namespace}
    return errors.Waiting(link.waiter.hex(), link.waiter_label, **at, key=link.key, mode=mode)


def late(errand: Errand) -> errors.Error:
    """As what a call ends whose time is over."""
    why = errand.last or "no answer came"
    if errand.may_be_done:
        return errors.CommitUnknown(f"no answer within the timeout ({why}); it may have been done")
    if errand.cause in (Code.NO_QUORUM, Code.LOST):
        return error_of(errand.cause)(why)
    return errors.Unavailable(f"not done within the timeout: {why}")
