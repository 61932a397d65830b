"""What a transaction is protected from, and how: by locks as it goes, or by a look at its end."""

from __future__ import annotations

from enum import StrEnum

from engine import errors
from engine.protocol.limits import label_problem


class Concurrency(StrEnum):
    """When keys are locked: when they are touched, or when the transaction commits."""

    PESSIMISTIC = "PESSIMISTIC"
    OPTIMISTIC = "OPTIMISTIC"


class Isolation(StrEnum):
    """What a transaction is protected from: nothing but what was never committed; that keys change which it has read; and
    ranges, which it has scanned."""

    READ_COMMITTED = "READ_COMMITTED"
    REPEATABLE_READ = "REPEATABLE_READ"
    SERIALIZABLE = "SERIALIZABLE"


def check_mode(concurrency: str, isolation: str | None) -> tuple[Concurrency, Isolation]:
    """The mode that was asked for. Raises UsageError for one that there is not."""
    try:
        chosen = Concurrency(concurrency)
        default = Isolation.REPEATABLE_READ if chosen is Concurrency.PESSIMISTIC else Isolation.SERIALIZABLE
        level = Isolation(isolation) if isolation is not None else default
    except ValueError as error:
        raise errors.UsageError(
            f"{error}: expected PESSIMISTIC or OPTIMISTIC, and READ_COMMITTED, REPEATABLE_READ or SERIALIZABLE"
        ) from None
    return chosen, level


def check_patience(nowait: bool, skip_locked: bool, concurrency: Concurrency, name: str) -> None:
    """Raise UsageError for what cannot be meant by whoever does not want to wait for locks."""
    if not isinstance(nowait, bool) or not isinstance(skip_locked, bool) or (nowait and skip_locked):
        raise errors.UsageError(
            f"nowait is {nowait!r}, and skip_locked {skip_locked!r}: expected True of one of them at most"
        )
    if concurrency is Concurrency.OPTIMISTIC:
        raise errors.UsageError(f"transaction {name} is OPTIMISTIC: it locks nothing before its end, and claims nothing")


def check_flags(**flags: object) -> None:
    """Raise UsageError for a flag that is neither True nor False."""
    for name, given in flags.items():
        if not isinstance(given, bool):
            raise errors.UsageError(f"{name} is {given!r}: expected True or False")


def check_label(label: str) -> None:
    """Raise UsageError for what cannot be the label of a transaction."""
    if not isinstance(label, str):
        raise errors.UsageError(f"a label is {label!r}: expected a str")
    if problem := label_problem(label):
        raise errors.UsageError(problem)
