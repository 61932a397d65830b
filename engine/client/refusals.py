"""What a refusal is to an application: one class of error for each code, and nothing else decides it."""

from __future__ import annotations

from engine import errors
from engine.protocol.requests import Code

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
}


def error_of(code: str) -> type[errors.Error]:
    """The error that a code stands for; a code of a newer node that is not known here is an error of no kind."""
    return ERRORS.get(code, errors.Error)
