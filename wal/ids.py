"""The names of things that survive a process: nodes, versions, ballots, fragments, transactions.

Everything here is a plain value that orders, hashes and prints the same way in every process, because names appear in
the log, on the wire, in a scenario and in a terminal, and a reader must recognise them everywhere.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence
from itertools import repeat
from typing import Annotated, NamedTuple

import msgspec

NUMBER_MAX = 2**62 - 1
"""Two of these still make a counter."""
Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
"""What counts, or names one of many. Less than none, or more than there can be, is refused where it is read."""
Digest = Annotated[int, msgspec.Meta(ge=0)]
"""64 bits of a sum."""

NodeId = str
"""A node's stable name, 1 to 64 of the characters of `NAME`; it belongs to a data directory and never changes."""

Namespace = str
"""A named map, spelled like a node id. Names that begin with `~` are the engine's own."""

Fragment = tuple[Namespace, Number]
"""(namespace, partition): the unit of counting, replication, rebalancing and reconciliation. Prints as `acc/7`."""

TxId = bytes
"""16 bytes: the client's session, which it named, and a number that rises with each thing it asks (u48, big-endian).

What a transaction writes in one partition may be prepared in several pieces, each by itself: the first under its id, the
others under that and the number of the piece (u16), which no client can say.
"""

TX_ID_BYTES = 16
PIECES_MAX = 1 << 16
"""Of what one transaction writes in one partition."""
SESSION_BYTES = 10
SESSION_DRAWN_BITS = 48
SEQUENCE_MAX = (1 << 48) - 1
DECISIONS: Namespace = "~tx"
"""The engine's namespace of two-phase commit decisions: transaction id -> outcome, counted like any other fragment."""
CODECS: Namespace = "~codec"
"""The engine's namespace of codecs: name of a namespace -> name of the codec that it is kept in."""
EXPIRIES: Namespace = "~ttl"
"""The engine's namespace of what expires: namespace and key -> when, and which entry that is said of."""
CLIENTS: Fragment = ("~client", 0)
"""Not a fragment, but where a segment's index has the records that name clients."""

MAPS: Fragment = ("~map", 0)
"""Not a fragment either: the records that have committed maps."""

COUNTER_MAX = 2**63 - 1
KEY_BYTES_MAX = 400
VALUE_BYTES_MAX = 16 << 20
SLOTS = 16384
PARTITIONS_MAX = SLOTS
"""Of one group."""
PARTITION_DIGITS_MAX = len(str(PARTITIONS_MAX))
"""Of a partition's number."""
TABLE_MAX = (1 << 16) - 1
"""Of all groups: a store has two bytes for the number of a partition, and one number more to end a scan with."""
NAME_MAX = 64
NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{NAME_MAX - 1}}}")


MINOR_BITS = 24
"""Of a version as one number."""


class Version(NamedTuple):
    """A topology version: `major` rises for join, leave and fail, `minor` for everything else. Prints as `3.1`."""

    major: Number
    minor: Number

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @property
    def number(self) -> int:
        """The version as one number, which orders as versions do."""
        return self.major << MINOR_BITS | self.minor


ROUNDS_AHEAD = 1 << 32
"""A ballot that is further ahead of what was promised is not heeded: soon there would be none that is higher."""


class Ballot(NamedTuple):
    """A Paxos ballot of one exchange; unique because the proposer's id is part of it. Prints as `2@n1`."""

    round: Number
    node: NodeId

    def __str__(self) -> str:
        return f"{self.round}@{self.node}" if self.node else "-"


Era = tuple[Number, Number]
"""(version of the map, as one number; number): what is decided in one era of all nodes lies on one side of each cut. A
cut is called by the era that it comes before. It lives in memory only."""

NO_VERSION = Version(0, 0)
NO_ERA: Era = (0, 0)
FIRST_ERA: Era = (0, 1)
"""Of a node that has not heard of any."""
NO_BALLOT = Ballot(0, "")


def slot_of(key: bytes) -> int:
    """The slot of a key, 0 to 16383: CRC-16/XMODEM of its `{hash tag}` if it has one, else of the whole key.

    The rule is Redis Cluster's, so that its smart clients can route to us: the tag is what stands between the first
    `{` and the first `}` after it, unless that is nothing.
    """
    left = key.find(b"{")
    if left >= 0:
        right = key.find(b"}", left + 1)
        if right > left + 1:
            key = key[left + 1 : right]
    return binascii.crc_hqx(key, 0) % SLOTS


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key in a cluster of `partitions` (a power of two up to 16384); fixed for its life."""
    slot = slot_of(key) if b"{" in key else binascii.crc_hqx(key, 0) % SLOTS
    return slot * partitions // SLOTS


def partitions_of(keys: Sequence[bytes], partitions: int) -> list[int]:
    """`partition_of` for each of many keys."""
    first = keys[0] if keys else b""
    left = first.find(b"{")
    right = first.find(b"}", left + 1)
    if 0 <= left < right - 1:
        tagged = first[: right + 1]
        if min(keys).startswith(tagged) and max(keys).startswith(tagged):  # and so does all that lies between them
            return [partition_of(first, partitions)] * len(keys)
    if b"{" in b"".join(keys):
        return [partition_of(key, partitions) for key in keys]
    return [at % SLOTS * partitions // SLOTS for at in map(binascii.crc_hqx, keys, repeat(0))]


def strays_of(keys: Sequence[bytes], partition: int, partitions: int) -> list[int]:
    """Where among many keys those are that do not hash to a partition."""
    if b"{" not in b"".join(keys):
        width = SLOTS // partitions
        slots = range(partition * width, (partition + 1) * width)
        here = {slot + high for slot in slots for high in range(0, 1 << 16, SLOTS)}
        if here.issuperset(map(binascii.crc_hqx, keys, repeat(0))):
            return []
    return [at for at, number in enumerate(partitions_of(keys, partitions)) if number != partition]


def fragment_name(fragment: Fragment) -> str:
    """How a fragment prints everywhere: `acc/7`."""
    return f"{fragment[0]}/{fragment[1]}"


def fragment_named(text: str) -> Fragment:
    """The inverse. Raises ValueError with what was expected.

    >>> fragment_named("acc/7")
    ('acc', 7)
    """
    namespace, _, number = text.rpartition("/")
    if not namespace or not (number.isascii() and number.isdigit()) or len(number) > PARTITION_DIGITS_MAX:
        raise ValueError(f"{text[:80]!r} is no fragment: expected a namespace and a partition, such as accounts/7")
    return namespace, int(number)


def session_of(opened_s: int, drawn: int) -> bytes:
    """The name of a session: seconds since 1970 (u32), by its client's clock, and bits that it drew.

    The time is for people, and no rule looks at it; to who answers a session is ten bytes.
    """
    name = (opened_s & 0xFFFFFFFF) << SESSION_DRAWN_BITS | drawn
    return name.to_bytes(SESSION_BYTES, "big")


def opened_s(tx: TxId) -> int:
    """When the session of an id was opened, by its client's clock, in seconds since 1970."""
    return int.from_bytes(tx[: SESSION_BYTES - SESSION_DRAWN_BITS // 8], "big")


def tx_of(session: bytes, sequence: int) -> TxId:
    """The id of what a session asks under this number."""
    return session + sequence.to_bytes(TX_ID_BYTES - SESSION_BYTES, "big")


def sequence_of(tx: TxId) -> int:
    """The number of an id within its session."""
    return int.from_bytes(tx[SESSION_BYTES:TX_ID_BYTES], "big")


def piece_of(tx: TxId, number: int) -> TxId:
    """What a piece of a transaction is prepared as, of several in one partition."""
    return tx + number.to_bytes(2, "big") if number else tx


def piece_number(tx: TxId) -> int:
    """Which piece is prepared as this."""
    return int.from_bytes(tx[TX_ID_BYTES:], "big")


def whole_of(tx: TxId) -> TxId:
    """The transaction that a piece is of."""
    return tx[:TX_ID_BYTES]


def end_of(session: bytes, sequence: int) -> bytes:
    """In the order of bytes all ids of a session up to this number come before it, with their pieces, and no others."""
    return tx_of(session, sequence) + b"\xff\xff\xff" if sequence >= 0 else b""


def tx_name(tx: TxId) -> str:
    """How a transaction, and each of its pieces, prints everywhere: the hexadecimal id, or `-` for none."""
    return tx[:TX_ID_BYTES].hex() if tx else "-"


def check_name(kind: str, name: str) -> str:
    """Return `name` if it is a legal name of a node, namespace or cluster; raise ValueError with the rule if not."""
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{kind} {name!r} is not a legal name: expected 1 to 64 letters, digits, '.', '_' or '-', "
            "beginning with a letter or a digit"
        )
    return name
