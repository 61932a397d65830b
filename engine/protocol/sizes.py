"""How large what a client asks for may be, and how large it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from engine.protocol.requests import (
    Admin,
    Check,
    CommitTx,
    Get,
    GetStatus,
    GetTable,
    KeepCut,
    KeepLocks,
    KeepSessions,
    Lock,
    Put,
    Request,
    Scan,
    StageWrites,
    Swap,
    TakeCut,
    Unlock,
)
from wal.ids import Namespace

KEYS_MAX = 100_000
"""Keys in one request; a turn with more of them would take so long that the node would be taken for dead."""
REQUEST_BYTES_MAX = 64 << 20
PART_BYTES_MAX = 32 << 20
"""Of what a batch writes in one partition: it is one record of the log on every copy."""
TRANSACTION_BYTES_MAX = 256 << 20
"""Of keys and values that one transaction writes."""


def bytes_of(strings: Iterable[bytes | None]) -> int:
    """How many bytes they have."""
    return sum(map(len, filter(None, strings)))


def written_bytes(writes: Iterable[tuple[Namespace, list[bytes], list[bytes | None]]]) -> int:
    """The same of what a transaction writes."""
    weight = 0
    for _, keys, values in writes:
        weight += bytes_of(keys) + bytes_of(values)
    return weight


def weight_of(request: Request) -> int:
    """About how many bytes a request holds."""
    match request:
        case Put():
            keys, values = request.keys, request.values
            if len(keys) == 1 == len(values):
                return len(keys[0]) + len(values[0] or b"")
            return bytes_of(keys) + bytes_of(values)
        case Swap(_, _, _, key, _, old, new):
            return bytes_of([key, old, new])
        case CommitTx(_, _, _, _, writes, locks, reads):
            weight = written_bytes(writes)
            if request.conditions:
                weight += sum(bytes_of(one[1:4:2]) for one in request.conditions)
            if locks:
                weight += bytes_of([key for _, key in locks])
            return weight + bytes_of([key for _, key, _, _ in reads]) if reads else weight
        case StageWrites():
            return written_bytes(request.writes)
        case Get():
            return bytes_of(request.keys)
        case Lock():
            return bytes_of(request.keys) + bytes_of(request.held)
        case Scan() | KeepLocks() | KeepSessions() | Unlock() | Check() | GetStatus() | GetTable() | Admin():
            return 0
        case TakeCut() | KeepCut():
            return 0
        case _:
            assert_never(request)
