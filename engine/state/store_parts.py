"""A checkpoint in parts of bounded size, so that it can be handed to another process while its node goes on.

```
Begin, State*, Rows*, End        the rows of one fragment follow each other, in any order of their keys; and so do the
                                 pieces of one state, in their order
```

Each part is a frame: its length (u32, big-endian), then the part in MessagePack. What answers is an `Answer` in the same
form: `ready` before anything was sent, and at the end `done`, `again` (the file's map was too small, and has grown: all
parts once more) or the name of an error of `engine.state.store_errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, TypeVar

import msgspec

from engine.state.loaded import Encoded, in_pieces
from engine.state.store import CheckpointImage, Entry
from wal.ids import Fragment

PART_BYTES = 64 << 10
"""About what one part holds: more than one row only if all of them fit."""
FRAME_BYTES_MAX = 1 << 30
ROW_BYTES = 32

_Name = TypeVar("_Name")


class Begin(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """What is not divided: how far the log is contained, which fragments are cleared, and which are gone."""

    lsn: int
    cleared: list[Fragment]
    gone: list[Fragment]


class State(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Encoded states, or pieces of them. `node`: the node's own values."""

    fragments: list[tuple[Fragment, bytes]]
    partitions: list[tuple[int, bytes]]
    node: list[tuple[str, bytes]]


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
    gone = [name for name, state in image.fragments.items() if state is None]
    yield Begin(image.lsn, list(image.cleared), gone)
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
    for node in _bounded(image.node.items()):
        yield State([], [], node)
    for fragments in _bounded((name, state) for name, state in image.fragments.items() if state is not None):
        yield State(fragments, [], [])
    for partitions in _bounded(image.partitions.items()):
        yield State([], partitions, [])


def _bounded(states: Iterable[tuple[_Name, Encoded]]) -> Iterator[list[tuple[_Name, bytes]]]:
    """States, or pieces of them, as many as one part holds."""
    found: list[tuple[_Name, bytes]] = []
    size = 0
    for name, state in states:
        for piece in in_pieces(state):
            found.append((name, piece))
            size += ROW_BYTES + len(piece)
            if size >= PART_BYTES:
                yield found
                found, size = [], 0
    if found:
        yield found


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
