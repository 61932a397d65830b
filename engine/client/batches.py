"""How a batch of writes is cut into requests, so that each partition's part of it is in one: what is in one is atomic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from engine import errors
from engine.protocol.sizes import KEYS_MAX, PART_BYTES_MAX, TRANSACTION_BYTES_MAX
from rebalance.table import Topology
from wal.ids import Namespace

REQUEST_KEYS = 10_000
REQUEST_BYTES = 16 << 20
"""A request is as large as this, unless the part of a single partition is larger."""
STAGED_ABOVE = 16 << 20
"""What a transaction writes is said in pieces where it has more bytes."""
PIECE_BYTES = 4 << 20
"""Of each of these, unless a single value is larger."""
ASKING = 64
"""Of the first piece that is staged the fraction: it asks for room, and may be sent in vain, again and again."""

Writes: TypeAlias = list[tuple[Namespace, list[bytes], list[bytes | None]]]
TimesToLive: TypeAlias = list[tuple[Namespace, bytes, int]]


def grown(
    size: int, before: Mapping[bytes, bytes | None], values: Mapping[bytes, bytes | None], name: str, *, keys: int = 0
) -> int:
    """How many bytes a transaction writes with these values beside, or instead of, those `before`; it wrote `keys` in all
    until then. Raises UsageError if these are too many, or the bytes, before anything is sent."""
    for key, value in values.items():
        size += len(key) + (len(value) if value is not None else 0)
        if key in before:
            size -= len(key) + len(before[key] or b"")
        else:
            keys += 1
    if keys > KEYS_MAX:
        raise errors.UsageError(
            f"transaction {name} would write {keys} keys: expected at most {KEYS_MAX} in one transaction"
        )
    if size > TRANSACTION_BYTES_MAX:
        raise errors.UsageError(
            f"the writes of transaction {name} would have {size} bytes: expected at most {TRANSACTION_BYTES_MAX} in one "
            "transaction"
        )
    return size


def pieces_of(writes: Writes, ttls: TimesToLive, piece_bytes: int) -> Iterator[tuple[Writes, TimesToLive]]:
    """What a transaction writes, cut into pieces of about so many bytes, in its order; each key with its time to live. The
    second one, which is the first to be staged, is smaller."""
    lasting = {(namespace, key): ttl_ms for namespace, key, ttl_ms in ttls}
    piece: Writes = []
    theirs: TimesToLive = []
    size = done = 0
    for namespace, keys, values in writes:
        began = False
        for key, value in zip(keys, values, strict=True):
            one = len(key) + len(value or b"")
            if piece and size + one > (piece_bytes // ASKING if done == 1 else piece_bytes):
                yield piece, theirs
                done += 1
                piece, size, theirs, began = [], 0, [], False
            if not began:
                piece.append((namespace, [], []))
                began = True
            piece[-1][1].append(key)
            piece[-1][2].append(value)
            if lasting and (namespace, key) in lasting:
                theirs.append((namespace, key, lasting[namespace, key]))
            size += one
    yield piece, theirs


def batches_of(namespace: Namespace, writes: Mapping[bytes, bytes | None], topology: Topology) -> list[list[bytes]]:
    """The keys of each request, in the order of their partitions. Raises UsageError before anything is asked."""
    parts: dict[int, list[bytes]] = {}
    sizes: dict[int, int] = {}
    keys = list(writes)
    for number, key in zip(topology.places(namespace, keys), keys, strict=True):
        parts.setdefault(number, []).append(key)
        sizes[number] = sizes.get(number, 0) + len(key) + len(writes[key] or b"")
    for number, part in parts.items():
        if len(part) > KEYS_MAX or (sizes[number] > PART_BYTES_MAX and len(part) > 1):
            raise errors.UsageError(
                f"{len(part)} keys and {sizes[number]} bytes of a batch are in partition {number}: expected at most "
                f"{KEYS_MAX} and {PART_BYTES_MAX}, which are written as one; nothing was: make smaller batches"
            )
    batches: list[list[bytes]] = []
    size = 0
    for number, part in sorted(parts.items()):
        fits = batches and len(batches[-1]) + len(part) <= REQUEST_KEYS and size + sizes[number] <= REQUEST_BYTES
        if not fits:
            batches.append([])
            size = 0
        batches[-1].extend(part)
        size += sizes[number]
    return batches
