"""A checkpoint in parts of bounded size, so that it can be handed to another process while its node goes on.

```
Begin, State*, Rows*, End        the rows of one fragment follow each other, in any order of their keys
```

Each part is a frame: its length (u32, big-endian), then the part in MessagePack. What answers is an `Answer` in the same
form: `ready` before anything was sent, and at the end `done`, `again` (the file's map was too small, and has grown: all
parts once more) or the name of an error of `engine.state.store_errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from engine.state.store import CheckpointImage, Entry
from wal.ids import Fragment

PART_BYTES = 64 << 10
"""About what one part holds: more than one row only if all of them fit."""
FRAME_BYTES_MAX = 1 << 30
ROW_BYTES = 32


class Begin(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """What is not divided: how far the log is contained, the node's own values, and which fragments are cleared."""

    lsn: int
    node: dict[str, bytes]
    cleared: list[Fragment]


class State(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Encoded states; None: the fragment is gone."""

    fragments: list[tuple[Fragment, bytes | None]]
    partitions: list[tuple[int, bytes]]


class Rows(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Some rows of a fragment: (epoch, counter, value), and None for a key that goes."""

    fragment: Fragment
    keys: list[bytes]
    entries: list[tuple[int, int, bytes | None] | None]

    @property
    def size(self) -> int:
        """What its keys and values weigh, in bytes."""
        return sum(map(len, self.keys)) + sum(len(entry[2] or b"") for entry in self.entries if entry is not None)


class End(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """That was all of it."""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """`ready`, `done`, `again`, or an error's name; and what it says."""

    word: str
    text: str = ""


Part: TypeAlias = Begin | State | Rows | End

_encode = msgspec.msgpack.Encoder().encode
_decode_part = msgspec.msgpack.Decoder(Part).decode
_decode_answer = msgspec.msgpack.Decoder(Answer).decode


def parts_of(image: CheckpointImage) -> Iterator[Part]:
    """The parts of an image, each made when it is asked for."""
    yield Begin(image.lsn, image.node, list(image.cleared))
    yield from _states(image)
    for fragment, rows in image.rows.items():
        keys: list[bytes] = []
        entries: list[tuple[int, int, bytes | None] | None] = []
        size = 0
        for key, entry in rows.items():
            keys.append(key)
            if entry is None or not entry.counter:  # GONE is no update
                entries.append(None)
                size += ROW_BYTES + len(key)
            else:
                value = entry.value
                entries.append((entry.epoch, entry.counter, value))
                size += ROW_BYTES + len(key) + (len(value) if value is not None else 0)
            if size >= PART_BYTES:
                yield Rows(fragment, keys, entries)
                keys, entries, size = [], [], 0
        if keys:
            yield Rows(fragment, keys, entries)
    yield End()


def _states(image: CheckpointImage) -> Iterator[State]:
    fragments: list[tuple[Fragment, bytes | None]] = []
    size = 0
    for fragment, state in image.fragments.items():
        fragments.append((fragment, state))
        size += ROW_BYTES + len(state or b"")
        if size >= PART_BYTES:
            yield State(fragments, [])
            fragments, size = [], 0
    partitions: list[tuple[int, bytes]] = []
    for partition, data in image.partitions.items():
        partitions.append((partition, data))
        size += ROW_BYTES + len(data)
        if size >= PART_BYTES:
            yield State(fragments, partitions)
            fragments, partitions, size = [], [], 0
    if fragments or partitions:
        yield State(fragments, partitions)


def entries_of(rows: Rows) -> Iterator[tuple[bytes, Entry | None]]:
    """The rows again, as an image has them."""
    for key, entry in zip(rows.keys, rows.entries, strict=True):
        yield key, Entry(*entry) if entry is not None else None


def frame(said: Part | Answer) -> bytes:
    """What is said, as it goes through a pipe."""
    data = _encode(said)
    return len(data).to_bytes(4, "big") + data


def next_part(read: Callable[[int], bytes]) -> Part | None:
    """The next part; None at the end of the pipe, wherever that is. Raises msgspec.MsgspecError."""
    data = _frame(read)
    return _decode_part(data) if data is not None else None


def next_answer(read: Callable[[int], bytes]) -> Answer | None:
    """The next answer; None at the end of the pipe. Raises msgspec.MsgspecError."""
    data = _frame(read)
    return _decode_answer(data) if data is not None else None


def _frame(read: Callable[[int], bytes]) -> bytes | None:
    head = read(4)
    size = int.from_bytes(head, "big")
    if len(head) < 4:
        return None
    if size > FRAME_BYTES_MAX:
        raise msgspec.DecodeError(f"a frame of {size} bytes: expected at most {FRAME_BYTES_MAX}")
    data = read(size)
    return data if len(data) == size else None
