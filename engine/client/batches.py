"""How a batch of writes is cut into requests, so that each partition's part of it is in one: what is in one is atomic."""

from __future__ import annotations

from collections.abc import Mapping

from engine import errors
from engine.protocol.limits import KEYS_MAX
from rebalance.table import Topology
from wal.ids import Namespace

REQUEST_KEYS = 10_000
REQUEST_BYTES = 16 << 20
"""A request is as large as this, unless the part of a single partition is larger."""
PART_BYTES_MAX = 32 << 20
"""Of one partition's part: it is one record of the log on every copy."""

TRANSACTION_BYTES_MAX = 32 << 20
"""Of keys and values that one transaction writes: they are one message, and in each partition one record."""


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
