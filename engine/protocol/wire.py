"""Bytes between nodes, and between clients and nodes: the only module that knows them.

```
 frame:  length u32 | CRC-32C of the payload u32 | payload           (big-endian)
 payload: MessagePack array of messages, all of one kind of conversation
```

A connection begins with a `Hello` each way; the payloads that follow are peer messages, requests or replies, as the roles
say. A frame that claims more than its side of the conversation may send is refused before a byte of it is kept. Nothing
but the structs of `engine.messages` and `engine.protocol.requests` can come out of it, and nothing is ever evaluated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from engine.errors import ProtocolError
from engine.messages import Message
from engine.protocol.habits import Habits
from engine.protocol.requests import Reply, Request
from wal.checksum import crc32c

PROTOCOL = 1
HELLO_BYTES_MAX = 16 << 10
FRAME_BYTES_MAX = 64 << 20
"""What a client and a node may say to each other at once: a value of 16 MiB, and a batch of smaller ones."""
PEER_FRAME_BYTES_MAX = 256 << 20
"""What a peer may say at once: whatever a client asked for in one frame, with what is said about it beside."""

T = TypeVar("T")
_HEADER = struct.Struct(">II")
_pack_header = _HEADER.pack


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """Who speaks. `role` is `peer`, `client` or `node` (the answer); `refused` says why the conversation ends here.

    `name_taken`: because another node has the name of the one that called. `client` is what a client calls itself.
    `lock_lease_ms`, `result_retention_ms`: for how long a node keeps the locks and answers of who is silent.
    """

    magic: str
    protocol: int
    role: str
    cluster_name: str = ""
    cluster: str = ""
    node: str = ""
    allocation: str = ""
    incarnation: int = 0
    address: str = ""
    domain: str = ""
    refused: str = ""
    name_taken: bool = False
    client: str = ""
    lock_lease_ms: int = 0
    result_retention_ms: int = 0
    habits: Habits = Habits()


MAGIC = "foreshore"

_encoder = msgspec.msgpack.Encoder()
_hello = msgspec.msgpack.Decoder(Hello)
_messages = msgspec.msgpack.Decoder(list[Message])
_requests = msgspec.msgpack.Decoder(list[Request])
_replies = msgspec.msgpack.Decoder(list[Reply])
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


class FrameTooLarge(ProtocolError):
    """What was to be said does not fit in a frame; nothing was sent."""


LARGE_BYTES = 64 << 10
Framed: TypeAlias = tuple[bytes, ...]
"""A frame, in pieces to be written one after the other: to join a header and a large payload is to copy that."""


def framed(payload: object, limit: int = FRAME_BYTES_MAX) -> Framed:
    """A frame around a Hello or a list of messages. Raises FrameTooLarge if it would not be taken."""
    data = _encoder.encode(payload)
    if len(data) > limit:
        raise FrameTooLarge(f"{len(data)} bytes were to be sent at once: expected at most {limit}")
    header = _pack_header(len(data), crc32c(data))
    return (header, data) if len(data) >= LARGE_BYTES else (header + data,)


def frame(payload: object, limit: int = FRAME_BYTES_MAX) -> bytes:
    """The same, joined."""
    return b"".join(framed(payload, limit))


def frames(said: Sequence[T], limit: int = FRAME_BYTES_MAX) -> tuple[list[Framed], list[T]]:
    """The messages in one frame, or in several if they are too large together; and those that are too large alone."""
    try:
        return ([framed(said, limit)] if said else []), []
    except FrameTooLarge:
        if len(said) == 1:
            return [], list(said)
    middle = len(said) // 2
    first, second = frames(said[:middle], limit), frames(said[middle:], limit)
    return first[0] + second[0], first[1] + second[1]


class FrameReader:
    """Cuts a stream of bytes into payloads. It keeps at most one frame's bytes, and never more than `limit`."""

    def __init__(self) -> None:
        self.limit = HELLO_BYTES_MAX
        self._begun = b""  # less than a header
        self._parts: list[bytes] = []  # of a payload, of which so many bytes are to come, and its checksum
        self._missing = 0
        self._crc = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The payloads that are complete now. Raises ProtocolError for a frame that is too long or damaged.

        What comes in many parts is put together once, when all of it is there.
        """
        at, missing = 0, self._missing
        if missing:
            if len(data) < missing:
                self._parts.append(data)
                self._missing -= len(data)
                return
            payload = b"".join((*self._parts, data[:missing]))
            self._parts, self._missing, at = [], 0, missing
            yield _checked(payload, self._crc)
        elif self._begun:
            data, self._begun = self._begun + data, b""
        while len(data) - at >= _HEADER.size:
            length, crc = _HEADER.unpack_from(data, at)
            if length > self.limit:
                raise ProtocolError(
                    f"{self._foreign(data[at:])}a frame claims {length} bytes: expected at most {self.limit}"
                )
            at += _HEADER.size
            payload = data[at : at + length]
            if len(payload) < length:
                self._parts, self._missing, self._crc = [payload], length - len(payload), crc
                return
            at += length
            yield _checked(payload, crc)
        self._begun = data[at:]

    def _foreign(self, begin: bytes) -> str:
        """Who claims so much before it has greeted hardly means a frame."""
        if self.limit != HELLO_BYTES_MAX:
            return ""
        return f"the other side does not speak Foreshore's protocol: it begins with {begin[: _HEADER.size]!r}, where "


def _checked(payload: bytes, crc: int) -> bytes:
    if crc32c(payload) != crc:
        raise ProtocolError(f"a frame of {len(payload)} bytes does not match its checksum")
    return payload


def decode_hello(payload: bytes) -> Hello:
    """A Hello, of a known protocol. Raises ProtocolError."""
    try:
        hello = _hello.decode(payload)
    except _UNREADABLE as error:
        raise ProtocolError(f"the other side does not speak Foreshore's protocol: {error}") from error
    if hello.magic != MAGIC:
        raise ProtocolError(f"the other side does not speak Foreshore's protocol: it begins with {hello.magic[:20]!r}")
    if hello.protocol != PROTOCOL:
        raise ProtocolError(f"the other side speaks protocol {hello.protocol}, expected {PROTOCOL}: upgrade the older one")
    return hello


def decode_messages(payload: bytes) -> list[Message]:
    """Peer messages. Raises ProtocolError."""
    try:
        return _messages.decode(payload)
    except _UNREADABLE as error:
        raise ProtocolError(f"a frame holds no messages: {error}") from error


def decode_requests(payload: bytes) -> list[Request]:
    """Client requests. Raises ProtocolError."""
    try:
        return _requests.decode(payload)
    except _UNREADABLE as error:
        raise ProtocolError(f"a frame holds no requests: {error}") from error


def decode_replies(payload: bytes) -> list[Reply]:
    """Replies to a client. Raises ProtocolError."""
    try:
        return _replies.decode(payload)
    except _UNREADABLE as error:
        raise ProtocolError(f"a frame holds no replies: {error}") from error
