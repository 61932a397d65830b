"""How the store's keys and values lie in LMDB, byte by byte. Pure: bytes in, bytes out.

```
database     key                                         value
rows         namespace | 00 | partition u16 | key        01 | flags u8 | crc u32 | epoch u64 | counter u64 | value
fragments    namespace | 00 | partition u16              01 | 06       | crc u32 | contents u64 | live u64 | state
partitions   partition u16                               01 | 00       | crc u32 | state
node         00 "format"                                 01 | 00       | crc u32 | format of the store u64
             00 "lsn"                                    01 | 00       | crc u32 | applied LSN u64
             name                                        01 | 00       | crc u32 | value

first byte: the envelope's format.   flags: 1 = tombstone (the value is empty), 2 = begins with the digest of contents
(`rebalance.contents`), 4 = and with the number of rows that are no tombstones; older versions kept neither, or only the
first.
crc: CRC-32C of the database's name, the LMDB key, and the value without the crc itself.
```

Numbers are big-endian, so that LMDB's order is ours: by namespace, partition, key. The checksum covers key and database
because LMDB has none of its own: a page that came back in the wrong place must show as well as a flipped bit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge

from xxhash import xxh3_64_intdigest

from engine.state.loaded import Encoded, in_pieces
from engine.state.store import GONE, Entry
from rebalance.contents import NOTHING, Sums, packed_row_digest
from wal.checksum import crc32c
from wal.ids import KEY_BYTES_MAX, TABLE_MAX, Fragment

ROWS, FRAGMENTS, PARTITIONS, NODE = b"rows", b"fragments", b"partitions", b"node"
DATABASES = (ROWS, FRAGMENTS, PARTITIONS, NODE)
FORMAT_KEY, LSN_KEY = b"\0format", b"\0lsn"

_FORMAT = 1
_LIVE, _TOMBSTONE, _SUMMED, _COUNTED = 0, 1, 2, 4
_HEAD_BYTES, _ROW_HEAD_BYTES = 6, 22
_ROW = struct.Struct(">BBIQQ")  # format, flags, crc, epoch, counter
_VERSION = struct.Struct(">QQ")  # epoch, counter
_U16 = struct.Struct(">H")
_U64 = struct.Struct(">Q")
_SUMS = struct.Struct(">QQ")  # contents, live
_ROW_AT_ONCE = struct.Struct(">HIQQ")  # format and flags as one number, crc, epoch, counter
_LIVE_AT_ONCE, _TOMBSTONE_AT_ONCE = _FORMAT << 8 | _LIVE, _FORMAT << 8 | _TOMBSTONE
_HEAD_LIVE, _HEAD_TOMBSTONE = bytes((_FORMAT, _LIVE)), bytes((_FORMAT, _TOMBSTONE))
_HEAD_SUMMED, _HEAD_COUNTED = bytes((_FORMAT, _SUMMED)), bytes((_FORMAT, _SUMMED | _COUNTED))

_NAMESPACE_BYTES_MAX = 64
_LMDB_KEY_BYTES_MAX = 511
_LONG_BYTES = 4096
_SORT_AT_ONCE = 16_384

assert _NAMESPACE_BYTES_MAX + 1 + 2 + KEY_BYTES_MAX <= _LMDB_KEY_BYTES_MAX
assert TABLE_MAX < 1 << 16, "the partition after the last one must still have a key: it ends a scan"


class BadEnvelope(ValueError):
    """These bytes are not what was sealed under this key; the message says what was expected and found."""


# Keys.


def fragment_key(fragment: Fragment) -> bytes:
    """A fragment's key, and what the keys of its rows begin with.

    >>> fragment_key(("acc", 7))
    b'acc\\x00\\x00\\x07'
    """
    namespace, partition = fragment
    name = namespace.encode()
    assert 0 < len(name) <= _NAMESPACE_BYTES_MAX, f"a namespace of {len(name)} bytes"
    assert b"\0" not in name, "NUL ends a namespace"
    return name + b"\0" + _U16.pack(partition)


def fragment_of(key: bytes) -> Fragment:
    """The fragment that a fragment's or a row's key begins with; raises BadEnvelope for any other key."""
    name, _, rest = key.partition(b"\0")
    if not name or len(rest) < 2:
        raise BadEnvelope(f"expected a key of namespace, NUL and partition, found {key!r}")
    try:
        return name.decode(), int.from_bytes(rest[:2], "big")
    except UnicodeDecodeError:
        raise BadEnvelope(f"expected a namespace in UTF-8, found {name!r}") from None


def partition_key(partition: int) -> bytes:
    """A partition's key."""
    return _U16.pack(partition)


def partition_of(key: bytes) -> int:
    """The partition of a key; raises BadEnvelope for any other key."""
    if len(key) != 2:
        raise BadEnvelope(f"expected a partition's key of 2 bytes, found {key!r}")
    return int.from_bytes(key, "big")


def partition_in(key: bytes) -> int:
    """The partition that the key of a fragment's or a partition's state ends with, whatever else it is."""
    return int.from_bytes(key[-2:], "big")


def u64(number: int) -> bytes:
    """A number as the node's own values hold it."""
    return _U64.pack(number)


# Rows.


def row_seed(prefix: bytes) -> int:
    """The checksum of what the rows of one fragment have in common."""
    return crc32c(ROWS + prefix)


def seal_rows(prefix: bytes, changes: dict[bytes, Entry | None], removed: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """One fragment's rows to put, as LMDB takes them and in its order, which fills its pages best.

    They are taken out of `changes`: what is in a page of the transaction need not be held twice. The keys of rows that go
    are added to `removed`.
    """
    seed = row_seed(prefix)
    for key in _in_order(changes):
        entry = changes.pop(key)
        if entry is None or entry is GONE:
            removed.append(prefix + key)
            continue
        epoch, counter, value = entry.epoch, entry.counter, entry.value
        if value is None:
            head, body = _HEAD_TOMBSTONE, _VERSION.pack(epoch, counter)
        elif len(value) >= _LONG_BYTES:
            version = _VERSION.pack(epoch, counter)
            crc = crc32c(value, crc32c(key + _HEAD_LIVE + version, seed))
            yield prefix + key, b"".join((_HEAD_LIVE, crc.to_bytes(4, "big"), version, value))
            continue
        else:
            head, body = _HEAD_LIVE, _VERSION.pack(epoch, counter) + value
        yield prefix + key, head + crc32c(key + head + body, seed).to_bytes(4, "big") + body


def open_row(seed: int, key: bytes, raw: bytes) -> Entry:
    """The entry sealed in `raw` under `key` (without its prefix). Raises BadEnvelope."""
    if len(raw) < _ROW_HEAD_BYTES:
        raise BadEnvelope(f"expected an envelope of {_ROW_HEAD_BYTES} bytes and more, found {len(raw)}")
    form, flags, crc, epoch, counter = _ROW.unpack_from(raw)
    value = raw[_ROW_HEAD_BYTES:]
    long = len(raw) >= _LONG_BYTES
    found = _crc_of_long(seed, key, raw, value) if long else crc32c(key + raw[:2] + raw[6:], seed)
    if found != crc:
        raise BadEnvelope(f"expected checksum {crc:08x}, found {found:08x}")
    if form != _FORMAT or flags > _TOMBSTONE or (flags and len(raw) > _ROW_HEAD_BYTES):
        raise BadEnvelope(f"expected an envelope of format {_FORMAT}, found format {form}, flags {flags:02x}")
    return Entry(epoch, counter, None if flags else value)


def _crc_of_long(seed: int, key: bytes, raw: bytes, value: bytes) -> int:
    """The checksum of a row, without a copy more of what is long in it."""
    return crc32c(value, crc32c(key + raw[:2] + raw[6:_ROW_HEAD_BYTES], seed))


def open_rows(seed: int, skip: int, rows: Sequence[tuple[bytes, bytes]]) -> tuple[list[bytes], list[int], list[int]]:
    """Keys, counters and digests of contents (0: a tombstone) of many rows, whose whole keys begin with a
    prefix of `skip` bytes; fewer than there are rows, if one of them is not what was sealed."""
    keys = [full[skip:] for full, _ in rows]
    counters: list[int] = []
    digests: list[int] = []
    for key, (_, raw) in zip(keys, rows, strict=True):
        if len(raw) < _ROW_HEAD_BYTES:
            break
        head, crc, _, counter = _ROW_AT_ONCE.unpack_from(raw)
        value = raw[_ROW_HEAD_BYTES:]
        long = len(raw) >= _LONG_BYTES
        if (_crc_of_long(seed, key, raw, value) if long else crc32c(key + raw[:2] + raw[6:], seed)) != crc:
            break
        if head == _LIVE_AT_ONCE:
            digests.append(xxh3_64_intdigest(value, xxh3_64_intdigest(raw[6:_ROW_HEAD_BYTES] + key)))
        elif head == _TOMBSTONE_AT_ONCE and len(raw) == _ROW_HEAD_BYTES:
            digests.append(0)
        else:
            break
        counters.append(counter)
    return keys[: len(counters)], counters, digests


def stored_row_sums(seed: int, key: bytes, raw: bytes) -> Sums:
    """What the row sealed in `raw` contributes to what is kept of its fragment. Raises BadEnvelope."""
    if len(raw) < _ROW_HEAD_BYTES or crc32c(key + raw[:2] + raw[6:], seed) != int.from_bytes(raw[2:6], "big"):
        raise BadEnvelope("expected a row whose checksum matches")
    if raw[1] != _LIVE:
        return NOTHING
    return Sums(packed_row_digest(key, raw[6:_ROW_HEAD_BYTES], raw[_ROW_HEAD_BYTES:]), 1)


def row_is_whole(full: bytes, raw: bytes) -> bool:
    """Whether a row's checksum matches, given its whole LMDB key."""
    return crc32c(raw[6:], crc32c(ROWS + full + raw[:2])) == int.from_bytes(raw[2:6], "big")


def _in_order(changes: Mapping[bytes, Entry | None]) -> Iterable[bytes]:
    """The keys, ascending; sorted a bounded number at a time, because a sort keeps the interpreter to itself."""
    if len(changes) <= _SORT_AT_ONCE:
        return sorted(changes)
    keys = list(changes)
    return merge(*(sorted(keys[at : at + _SORT_AT_ONCE]) for at in range(0, len(keys), _SORT_AT_ONCE)))


# Everything else.


def seal_state(database: bytes, key: bytes, data: Encoded, head: bytes = _HEAD_LIVE) -> bytes:
    """What lies under `key` in one of the small databases."""
    crc, pieces = crc32c(database + key + head), in_pieces(data)
    for piece in pieces:
        crc = crc32c(piece, crc)
    return b"".join([head, crc.to_bytes(4, "big"), *pieces])


def open_state(database: bytes, key: bytes, raw: bytes) -> bytes:
    """The inverse of `seal_state`. Raises BadEnvelope."""
    return _open(database, key, raw, _HEAD_LIVE)


def seal_fragment(key: bytes, data: Encoded, sums: Sums) -> bytes:
    """A fragment's state, with what its rows add up to."""
    return seal_state(FRAGMENTS, key, [_SUMS.pack(*sums), *in_pieces(data)], _HEAD_COUNTED)


def open_fragment(key: bytes, raw: bytes) -> tuple[bytes, int | None, int | None]:
    """The inverse of `seal_fragment`: the state, the digest of contents and the number of rows; without the one or the
    other where an older version wrote it. Raises BadEnvelope."""
    if raw[:2] == _HEAD_LIVE:
        return _open(FRAGMENTS, key, raw, _HEAD_LIVE), None, None
    counted = raw[:2] == _HEAD_COUNTED
    data, size = _open(FRAGMENTS, key, raw, _HEAD_COUNTED if counted else _HEAD_SUMMED), 16 if counted else 8
    if len(data) < size:
        raise BadEnvelope(f"expected sums of {size} bytes, found {len(data)}")
    return data[size:], int.from_bytes(data[:8], "big"), int.from_bytes(data[8:16], "big") if counted else None


def _open(database: bytes, key: bytes, raw: bytes, head: bytes) -> bytes:
    data = raw[_HEAD_BYTES:]
    crc, found = int.from_bytes(raw[2:_HEAD_BYTES], "big"), crc32c(data, crc32c(database + key + raw[:2]))
    if len(raw) < _HEAD_BYTES or found != crc:
        raise BadEnvelope(f"expected checksum {crc:08x}, found {found:08x}")
    if raw[:2] != head:
        raise BadEnvelope(f"expected an envelope of format {_FORMAT}, found format {raw[0]}, flags {raw[1]:02x}")
    return data
