"""How a row of `~ttl` says when an entry expires: a deadline, and the counter of the entry that it is said of.

Of no other counter it says anything (`docs/expiry.md`). So who gives an entry another counter has to say it anew.
"""

from __future__ import annotations

from wal.ids import Namespace


def row_of(namespace: Namespace, key: bytes) -> bytes:
    """Where it stands when a key expires."""
    return namespace.encode() + b"\0" + key


def key_of(row: bytes) -> tuple[Namespace, bytes]:
    """The key of which a row speaks."""
    namespace, _, key = row.partition(b"\0")
    return namespace.decode(), key


def said(value: bytes) -> tuple[int, int]:
    """When, in ms of the wall clock, the entry at a counter expires."""
    when, _, counter = value.partition(b" ")
    return int(when), int(counter)


def saying(when: int, counter: int) -> bytes:
    """That the entry at this counter expires then."""
    return b"%d %d" % (when, counter)
