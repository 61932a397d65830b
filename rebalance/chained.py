"""The digest of a fragment's history: chained over (counter, issuing epoch, outcome, key, value), update by update."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from wal.records import Write

DIGEST_EVERY = 1024
"""A digest is kept each so many counters, to compare histories of copies that stand at different counters."""
DIGESTS_KEPT = 32

_ENTRY = struct.Struct(">QQBQ")  # counter, issuing epoch, outcome, hash of the value
PUT, DELETE, CLOSED = 1, 2, 3
pack = _ENTRY.pack


def chain(digest: int, write: Write) -> int:
    """The digest after `write`, given the digest before it; the same however the counters were batched."""
    counter = write.start
    if write.closed:
        for _ in range(write.closed):
            counter += 1
            digest = xxh3_64_intdigest(pack(counter, 0, CLOSED, 0), digest)
        return digest
    issued = write.origin or write.epoch
    for key, value in zip(write.keys, write.values, strict=True):
        counter += 1
        if value is None:
            digest = xxh3_64_intdigest(pack(counter, issued, DELETE, 0) + key, digest)
        else:
            digest = xxh3_64_intdigest(pack(counter, issued, PUT, xxh3_64_intdigest(value)) + key, digest)
    return digest


def digest_of(entries: Sequence[bytes], digest: int) -> int:
    """The digest after `entries_of` some counters, given the digest before them."""
    for entry in entries:
        digest = xxh3_64_intdigest(entry, digest)
    return digest


def entries_of(write: Write, first: int, last: int) -> list[bytes]:
    """What the digest takes in of the keys, or closed counters, from `first` up to `last` of a write, whatever it was
    before."""
    if write.closed:
        return [pack(counter, 0, CLOSED, 0) for counter in range(write.start + first + 1, write.start + last + 1)]
    issued, counter = write.origin or write.epoch, write.start + first
    entries: list[bytes] = []
    for key, value in zip(write.keys[first:last], write.values[first:last], strict=True):
        counter += 1
        if value is None:
            entries.append(pack(counter, issued, DELETE, 0) + key)
        else:
            entries.append(pack(counter, issued, PUT, xxh3_64_intdigest(value)) + key)
    return entries
